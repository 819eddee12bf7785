"""tinykit beside OpenVINO GenAI, llama.cpp, onnxruntime-genai and others, on the same weights and prompts.

    python benchmarks/peers.py [--quick] [--engines tinykit openvino llamacpp] [--plot peers.html]

Installs nothing: engines whose packages are missing are left out and said; docs/peers.md tells how to set
them up. Each engine runs in processes of its own, in interleaved rounds. A busy machine is refused unless
``--busy-ok`` is given. Tables, bars, and one line of JSON at the end; it ends with 1 if a default build fails
the accuracy gate. A whole run takes about half an hour on two cores.
"""

import argparse
import functools
import sys

from tinykit.errors import TinykitError
from tinykit.peers.command import Options, pairs, quick, run, tell
from tinykit.peers.engines import PEERS
from tinykit.peers.rounds import BATCHES
from tinykit.progress import Progress


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="+", default=[], choices=list(PEERS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=Options.rounds)
    parser.add_argument("--messages", type=int, default=Options.messages, help="short ones, and long ones")
    parser.add_argument("--no-batches", action="store_true", help="leave out the throughput")
    parser.add_argument(
        "--gate", type=int, default=Options.gate, help="messages for the accuracy gate; 0: none"
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--python", nargs="+", default=[], metavar="NAME=PATH", help="an engine's interpreter"
    )
    parser.add_argument("--files", nargs="+", default=[], metavar="NAME=PATH", help="weights made elsewhere")
    parser.add_argument(
        "--builder", default=sys.executable, help="interpreter for onnxruntime-genai's builder"
    )
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--busy-ok", action="store_true", help="measure on a busy machine too")
    parser.add_argument("--plot", metavar="FILE", help="write bars and tables as HTML")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    say = functools.partial(print, file=sys.stderr, flush=True)
    try:
        options = Options(
            engines=given.engines, rounds=given.rounds, messages=given.messages, gate=given.gate,
            batches={} if given.no_batches else dict(BATCHES), threads=given.threads,
            pythons=pairs(given.python, "python"), files=pairs(given.files, "files"),
            builder=given.builder, busy_ok=given.busy_ok,
        )  # fmt: skip
        outcome = run(quick(options) if given.quick else options, say=say, progress=Progress())
        tell(outcome, print, plot=given.plot)
    except TinykitError as error:
        sys.exit(str(error))
    sys.exit(not outcome.passes)


if __name__ == "__main__":
    main()
