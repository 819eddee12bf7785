"""How messages begin before they come to the point, and replies that are no titles.

The tables are patterns in which a space is any white space and an apostrophe may be curly or missing.
"""

import re

from tinykit.wordlists import NO_TITLE_ANSWERS


def _one_of(*patterns: str) -> re.Pattern[str]:
    joined = "|".join(patterns).replace("'", "['’]?").replace(" ", r"\s")
    return re.compile(f"(?:{joined})", re.I)


_TITLE = (
    "title|headline|subject|topic|titre|sujet|título|titulo|asunto|assunto|titel|überschrift|thema|titolo|oggetto"
    "|tytuł|temat|název|rubrik|otsikko|başlık|konu|заголовок|тема|название|назва|כותרת|العنوان|عنوان|शीर्षक"
    "|标题|標題|题目|題目|主题|タイトル|件名|題名|제목|tiêu đề|judul|หัวข้อ"
)
_ADJECTIVE = "the|a|my|suggested|possible|proposed|short|chat|conversation|thread|generated|final|new"
_SURE = "sure|certainly|of course|okay|ok|absolutely"

_LABEL = _one_of(
    rf"(?:(?:{_ADJECTIVE}) )*(?:{_TITLE})"
    r"(?: (?:is|(?:might|could|would) be|for (?:this|the) (?:chat|conversation|message)))?\s*[:：=]\s*",
    rf"(?:{_SURE})?[,!.]?\s*here(?:'s| is| are) [^:：\n]{{0,60}}[:：]\s*",
    rf"(?:{_SURE})[^:：\n]{{0,60}}\btitle\b[^:：\n]{{0,40}}[:：]\s*",
)
_LEAD_IN = _one_of(
    rf"(?:{_SURE}|here|the|a|one|possible|suggested)\b.{{0,80}}[:：]",
    rf"(?:{_SURE})[!.]?",
)
_PREAMBLE = _one_of(
    r"(?:thinking|thought|reasoning) process\b",
    r"chain of thought\b",
    r"(?:ok|okay|alright|hmm+|so|right|well)[,.]? (?:so )?"
    r"(?:the user|let's|let me|i need|i have to|i should|we need|first|this (?:message|user))\b",
    r"let(?:'s| me) (?:think|see|analy[sz]e|start|break)\b",
    r"the user(?:'s)? (?:is|was|wants|asks|asked|needs|says|said|just|seems|wrote)\b",
    r"the user has (?:asked|given|provided|sent)\b",
    r"first, (?:i|let|we)\b",
    r"(?:i|we) (?:need|have) to (?:come up|create|generate|produce|output|figure|name|think|write a title)\b",
    r"analy[sz](?:e|ing) the (?:request|message|user)\b",
)
_REFUSAL = _one_of(
    r"(?:i'm|i am) (?:very |really |so )?(?:sorry|afraid|unable|not able|just an? ai)\b",
    r"sorry,? (?:but )?(?:i|that|we)\b",
    r"(?:i apologi[sz]e|my apologies)\b",
    r"(?:unfortunately,? )?i (?:can't|cannot|can not|won't|do not have|don't have)\b",
    r"as an? (?:ai|language|large)\b",
    r"lo siento\b|je suis désolée?\b|désolée?,|es tut mir leid\b|entschuldigung,|desculpe,|mi dispiace\b",
    r"извините\b",
    r"抱歉|对不起|對不起|申し訳|すみません|죄송|我无法|我無法",
)
_ANSWER = _one_of(
    rf"(?:{_SURE}|definitely|yes|no|yep|great|thanks|thank you|hello|hi|hey|welcome)\s?[,!.:]",
    r"sure (?:thing|i)\b|thank you for\b|you're welcome\b",
    r"i(?:'d|'ll|'m| would| will| am| can| hope| think| believe| see| understand)\b",
    r"(?:you|we) (?:can|could|should|need to|must|may|might|have to)\b",
    r"here(?:'s| is| are)\b|it (?:seems|looks|sounds|appears)\b",
    r"there (?:is|are) (?:several|many|a few|no)\b|this (?:is|means|happens)\b",
    r"to (?:fix|solve|resolve|answer|do|get|make|create) (?:this|that|the|your|it)\b.*[,:]",
    r"the (?:answer|problem|issue|error) (?:is|seems)\b|how (?:can|may) i (?:help|assist)\b",
    r"(?:claro|por supuesto|natürlich|gerne|bien sûr|certo|конечно)\s?[,!.]|当然|好的[，,！!]|もちろん",
)

_GREETING = "hi+|hey+|hello+|yo|greetings|good (?:morning|afternoon|evening)|dear all"
_INTERJECTION = (
    "ok|okay|so|well|um+|hm+|alright|right|anyway|thanks|sorry|quick question|please|pls|plz|help"
    "|hallo|moin|salut|bonjour|hola|buenas|ol[aá]|oi|ciao|привет|selam|merhaba"
)
_OPENING = _one_of(
    r"(?:please |pls )?help (?:me|us) (?:to |with )?",
    rf"(?:(?:{_GREETING})(?: (?:there|all|everyone|team|guys|folks))?|{_INTERJECTION})(?=\W)[\s,.!:;—–-]*",
    r"(?:can|could|would|will) (?:you|u|someone|anyone) (?:please |pls |kindly )?",
    r"(?:i|we)(?:'d| would) (?:like|love) (?:you )?(?:to |an? )?",
    r"(?:i |we )?(?:really )?(?:need|want) (?:you to |to |an? |some )?",
    r"(?:i|we)(?:'m| am|'re| are) (?:(?:trying|looking) to )?",
    r"my |(?:i|we) (?:have|run) (?:to |an? )?|there (?:is|are) (?:an? )?",
    r"(?:give|tell|show|write|make) (?:me|us) ",
    r"(?:i've got|there's) an? |(?:is there|do you know|any) (?:any |an? )?(?:way|idea how) (?:to )?",
    r"kannst du (?:mir )?(?:bitte )?|ich brauche (?:einen? )?|puedes |necesito (?:una? )?|tu peux ",
    r"preciso de (?:uma? )?|mi serve (?:una? )?|нужен |нужна |нужно |麻烦|請問|想請問|请问",
)
_PLEASANTRY = _one_of(
    r"(?:i )?(?:really )?hope (?:you|this|it|all)\b",
    r"(?:ok,? |okay,? )?(?:this|it) (?:will|might|may) be (?:\w+ ){0,2}long\b",
    r"(?:some|a bit of) (?:background|context)\b|sorry (?:for|about|if)\b",
    r"(?:i )?(?:don't|do not) know if this is\b",
    r"(?:many )?thanks |thank you |first (?:time|of all) |long time ",
)


def drop_opening(text: str) -> str:
    """A message's sentence without one greeting, request or "I have a" at its beginning."""
    opening = _OPENING.match(text)
    return text[opening.end() :].lstrip() if opening else text


def is_pleasantry(sentence: str) -> bool:
    """Whether a sentence is about the message and not its subject: "hope this is the right place"."""
    return _PLEASANTRY.match(sentence) is not None


def drop_label(title: str) -> str:
    """A title without "Title:", "Here is a title:" and the like before it, if anything follows."""
    label = _LABEL.match(title)
    return title[label.end() :] if label and label.end() < len(title) else title


def is_lead_in(line: str) -> bool:
    """Whether a line only announces the next one."""
    return _LEAD_IN.fullmatch(line.strip(" *_#")) is not None


def is_preamble(text: str) -> bool:
    """Whether a reply thinks aloud."""
    return _PREAMBLE.match(text) is not None


def is_refusal(text: str) -> bool:
    """Whether a reply declines."""
    return _REFUSAL.match(text) is not None


def is_answer(text: str) -> bool:
    """Whether a reply talks to the person."""
    return _ANSWER.match(text) is not None


def is_no_title(key: str) -> bool:
    """Whether a folded reply says that there is no title."""
    return key in NO_TITLE_ANSWERS
