"""How often `choose` and `yes_no` are right about short texts: as they are, and calibrated in two ways.

    python benchmarks/choices.py [--model KEY] [--dtype DTYPE]

20 one-line messages in five topics, 20 reviews, 20 messages that are urgent or not. The last line is JSON.
"""

import argparse
import json
from collections.abc import Callable

from plain_errors import run

from tinykit import TinySession

TOPICS = {
    "cooking": [
        "My sourdough never rises, is my starter too cold?",
        "How long do I boil an egg so that the yolk stays soft?",
        "What can I use instead of buttermilk in pancakes?",
        "The sauce is too salty, can I still save it?",
    ],
    "sports": [
        "The striker scored twice in the second half.",
        "How should I train for my first half marathon?",
        "Who won the tennis final on Sunday?",
        "Is a heavier bat better for a beginner?",
    ],
    "computers": [
        "How do I undo the last commit in git?",
        "My laptop does not find the wifi any more.",
        "Which SQL query finds the rows without a match?",
        "The program crashes with a segmentation fault.",
    ],
    "travel": [
        "Do I need a visa for two weeks in Vietnam?",
        "Which side of the plane has the better view of the Alps?",
        "Is a rail pass worth it for five days in Japan?",
        "How early should I be at the airport for a flight abroad?",
    ],
    "health": [
        "My knee hurts whenever I walk down the stairs.",
        "How many hours should a ten-year-old sleep?",
        "Can I take ibuprofen and paracetamol together?",
        "The rash on my arm itches since yesterday.",
    ],
}
REVIEWS = {
    "positive": [
        "Best coffee in town, and the staff remember your name.",
        "It arrived a day early and works perfectly.",
        "I laughed from the first page to the last.",
        "The room was spotless and quiet, we slept wonderfully.",
        "After a year of daily use it still looks new.",
        "The support team solved my problem in five minutes.",
        "Every dish was a delight, we will be back.",
        "Easy to set up, even for my grandmother.",
        "A moving film with a superb cast.",
        "Worth every cent, I have bought a second one.",
    ],
    "negative": [
        "It broke on the second day and nobody answers my mails.",
        "The soup was cold and the waiter was rude.",
        "Two hours of my life that I will never get back.",
        "The battery is empty before lunch.",
        "The room smelled of smoke and the shower did not work.",
        "The seams came apart in the first wash.",
        "Far too expensive for what you get.",
        "The update has made everything slower.",
        "I waited six weeks and got the wrong size.",
        "The plot makes no sense and the actors look bored.",
    ],
}
URGENT = {
    "yes": [
        "The server room is on fire!",
        "The payment page is down and customers are leaving.",
        "Please call me back within ten minutes, it cannot wait.",
        "There is water coming through the ceiling.",
        "The patient has stopped breathing.",
        "We lose data every minute, please act now.",
        "The flight leaves in an hour and my passport is at home.",
        "Somebody has got into our accounts.",
        "The brakes of the delivery van do not work.",
        "The contract has to be signed before noon today.",
    ],
    "no": [
        "Have a look at the new logo when you find the time.",
        "The summer party may be in July or August.",
        "I have tidied the bookshelf.",
        "Thanks for the nice photos.",
        "Some day we could paint the fence.",
        "The library has new opening hours from next year.",
        "I wonder which tea goes best with this cake.",
        "There is no hurry with the survey.",
        "Attached are the minutes of last month's meeting.",
        "The cat sleeps on the sofa.",
    ],
}
Ask = Callable[[str, str], bool]


def right(texts: dict[str, list[str]], ask: Ask) -> int:
    return sum(ask(text, label) for label, group in texts.items() for text in group)


def choosing(session: TinySession, question: str, options: list[str], calibrate: object) -> Ask:
    def ask(text: str, label: str) -> bool:
        shown = f"N/A\n\n{question}" if calibrate == "N/A" else calibrate
        return session.choose(f"{text}\n\n{question}", options, calibrate=shown).label == label

    return ask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype")
    arguments = parser.parse_args()
    found: dict[str, dict[str, int]] = {}
    with TinySession(arguments.model, dtype=arguments.dtype) as session:
        for name, texts, question in (
            ("topics", TOPICS, "What is this about?"),
            ("reviews", REVIEWS, "The review is"),
        ):
            found[name] = {
                str(calibrate): right(texts, choosing(session, question, list(texts), calibrate))
                for calibrate in (False, True, "N/A")
            }
        found["urgent"] = {
            "False": right(
                URGENT,
                lambda text, label: (
                    (session.yes_no("Is this urgent?", text).probability > 0.5) == (label == "yes")
                ),
            )
        }
        dtype = session.info.dtype
    print(f"right of 20, {arguments.model} {dtype}\n")
    print(f"{'':10}{'as it is':>10}{'True':>10}{'N/A':>10}")
    for name, values in found.items():
        print(f"{name:10}" + "".join(f"{value:10}" for value in values.values()))
    print(json.dumps({"choices": found, "model": arguments.model, "dtype": dtype}))


if __name__ == "__main__":
    run(main)
