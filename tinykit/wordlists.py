"""Word lists, without logic: what people say when they ask for nothing, and names that say nothing.

Lists for people's words hold many languages, about one a line; they are compared after `fillers.fold`.
"""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _phrases(text: str) -> frozenset[str]:
    return frozenset(phrase.strip() for phrase in text.replace("\n", ";").split(";") if phrase.strip())


FILLER_WORDS = """
hi hii hiya hey heya hello helo hallo hullo yo ya sup wassup wazzup whatsup howdy greetings heyo
hola gm gn
good morning mornin evening afternoon night goodnight day bye goodbye later ttyl brb cya welcome
thanks thank thx tx ty tysm tyvm cheers thankyou appreciated please pls plz
ok okay okey oki okie k kk yep yes yeah yea yup nope no nah sure alright fine right done continue
cool nice great awesome perfect wow whoa neat lovely brilliant excellent fancy interesting yikes meh
ugh
lol lmao rofl huh haha huh hehe heh xd test tests testing tested ping pong asdf asd sdf dfg jkl
qwerty qwertz foo123 test123
there you u hm mhm hmm um uh er oh ah so well anyway again everyone all folks team guys mate buddy
bro boss
the a an it me is are i am im just and to very much lot bunch too then today now one two three
na hallo servus moin moinmoin guten morgen abend tag nacht danke bitte ja nein doch gruezi hallochen
tschuss ciao
dir dank vielen lieben schon alles klar super prima toll gut wieder
salut bonjour bonsoir coucou merci beaucoup bonne soiree journee nuit oui non daccord svp rebonjour
bjr
toi vous bien super genial parfait
buenas buenos dias tardes noches gracias muchas por favor si vale bueno adios saludos probando
prueba
oi ola opa eai bom dia boa tarde noite obrigado obrigada valeu brigado muito sim nao beleza tudo bem
teste
buongiorno buonasera buonanotte grazie mille prego va bene ehi ehila salve aloha prova
hoi hoihoi goedemorgen goedemiddag goedenavond dag bedankt dank je wel top hoor doei
czesc hej siema dzien dobry wieczor dzieki dziekuje bardzo wielkie tak nie
ahoj cau dekuji diky dobre rano den vecer tjena hejsan tack sa mycket morron god morgon kvall
tak tusind mange takk hei heisann moi moikka terve kiitos paljon huomenta
selam merhaba gunaydin iyi aksamlar geceler tesekkurler tesekkur ederim sagol tamam evet hayir
привет приветик здравствуйте здравствуй здарова здорово хай добрый доброе доброго день утро утра
вечер вечера
спасибо большое спс благодарю пожалуйста да нет ок окей ладно хорошо хаха тест проверка связи раз
два три ага ого
привіт вітаю добрий ранок ранку вечір вечора дякую щиро гарного так ні
مرحبا اهلا السلام عليكم وعليكم ورحمة الله وبركاته سلام صباح مساء الخير النور شكرا جزيلا شكر نعم لا
طيب تمام هاي
سلام درود خوبی ممنون مرسی خیلی متشکرم بله نه
שלום היי אהלן תודה רבה בוקר טוב ערב לילה כן לא בסדר
नमस्ते नमस्कार जी धन्यवाद शुक्रिया हाँ नहीं बहुत ठीक है सुप्रभात
নমস্কার ধন্যবাদ হ্যালো অনেক ভাই வணக்கம் நன்றி காலை మనస్కారం నమస్కారం ధన్యవాదాలు
안녕 안녕하세요 안녕하십니까 감사합니다 고마워 고마워요 감사 네 예 아니요 테스트 하이 반가워요
반갑습니다 처음 뵙겠습니다
xin chao chào cam on nhieu nha nhe alo vang da khong
halo hai selamat pagi siang sore malam terima kasih makasih ya kak
geia γεια σου σας καλημερα καλησπερα ευχαριστω
"""

# Small talk of several words, in scripts with spaces.
SMALL_TALK = _phrases(
    """
    how are you; how are you doing; how r u; how have you been; hows it going; how is it going;
    hows your day going
    hows your day; whats up; whats good; whats new; nice to meet you; you there; are you there;
    anyone there
    anybody there; anyone home; are you awake; you awake; still there; still with me; is this thing on
    is anyone there; can you hear me; do you hear me; can i ask you something; can i ask a question
    i have a question; got a question; quick question; i need help; i need your help; can you help me;
    can you help
    please help; help me; lets get started; lets start; lets go; see you; see you tomorrow;
    see you later
    take care; good luck; have a nice day; have a good one; fair enough; no problem; no worries;
    sounds good; got it
    go on; go ahead; well played; that was quick; much obliged; its me; thats all; never mind; nvm
    wie gehts; wie geht es dir; wie geht es ihnen; alles klar; alles klar bei dir; alles gut; bist du da
    bist du noch da; grüß dich; grüß gott; guten tag; das ist nur ein test; nur ein test; bis später;
    bis bald; und dir
    ça va; comment ça va; comment vas tu; comment allez vous; y a quelquun; tu es là; ça roule; ok merci;
    à bientôt; à toi
    qué tal; cómo estás; cómo está; estás ahí; andas por ahí; hay alguien; todo bien; buenos días;
    hasta luego
    tudo bem; tudo bom; como vai; você está aí; vc tá aí; e aí; está aí; até logo
    come stai; come va; ci sei; ci sei ancora; tutto bene; a te; a presto
    hoe gaat het; alles goed; ben je er; ben je daar; jak leci; co słychać; jak się masz; jesteś tam;
    to tylko test; jsi tam
    jak se máš; hur mår du; är du där; er du der; ha en bra dag; hav en god dag; mitä kuuluu
    nasılsın; nasılsınız; ne haber; naber; orada mısın; iyi günler; tamam devam; görüşürüz
    как дела; как ты; ты тут; ты здесь; вы тут; есть кто; кто тут; это просто; це просто; як справи;
    ти тут; чи є хтось
    كيف حالك; كيف الحال; كيفك; هل أنت هنا; حياك الله; يعطيك العافية; ما شاء الله; چطوری; حالت چطوره;
    خسته نباشی; دمت گرم
    מה קורה; מה נשמע; מה שלומך; אתה שם; कैसे हो; कैसे हैं; क्या हाल है; कोई है क्या; কেমন আছো; কেমন আছেন
    잘 지내세요; 잘 지내; 거기 있어요; 거기 있나요; khỏe không; có ai không; buổi tối; buổi sáng;
    apa kabar
    """
)

# Small talk in scripts that are written without spaces.
UNSPACED_SMALL_TALK = """
你好 您好 你们好 大家好 在吗 在嗎 在不在 在么 有人吗 有人嗎 早上好 早安 上午好 中午好 下午好 晚上好
晚安 早 嗨 哈喽 哈囉 嘿 喂
谢谢 謝謝 谢谢你 謝謝你 多谢 多謝 非常感谢 感谢 辛苦了 再见 再見 拜拜 好的 好 嗯 嗯嗯 是的 没事 哈哈
呵呵 测试 測試
啊 呀 吧 吗 嗎 呢 哦 噢 啦 了 哇 您 我 一下
こんにちは こんばんは おはよう おはようございます おはよ もしもし はじめまして やあ やっほー どうも
よろしく よろしくお願いします お願いします
ありがとう ありがとうございます ありがとうございました 助かりました さようなら おやすみ
おやすみなさい お疲れ様です お疲れさまです はい いいえ
うん ハロー テスト テストです 元気 元気ですか いますか 誰かいますか お元気ですか ね よ です か 笑
สวัสดี สวัสดีครับ สวัสดีค่ะ สวัสดีจ้า ดีครับ ดีค่ะ หวัดดี ขอบคุณ ขอบคุณครับ ขอบคุณค่ะ ครับ ค่ะ คะ
จ้า ทดสอบ ตอนบ่าย ตอนเช้า สบายดีไหม
ສະບາຍດີ ຂອບໃຈ សួស្តី អរគុណ မင်္ဂလာပါ
"""

# Words that only point at an attachment: "fix this", "what is wrong here".
POINTER_WORDS = _words(
    """
    a about above again and any are at attached can check could do does explain fix for from give have
    help here how
    i image in into is it its look make me mean my need of on one photo picture please read screenshot
    see show solve tell
    that the them these they this those to u understand up us video want what whats where which why with
    wrong you
    """
)

# Words that a title does not share with its message by more than chance.
SMALL_WORDS = _words(
    """
    a an and as at by de for from how in is it la le my no not of on or the to und with your
    """
)

# Words that a cut title does not end with.
LOOSE_WORDS = _words(
    """
    a an and as at but by for from how i if in is it its my of on or our so that the their this to we
    with
    """
)

ACRONYMS = _words(
    """
    API CLI CPU CRUD CSS DNS ETL GPU HTML HTTP HTTPS ID JSON LLM REST SDK SSH TCP TLS TUI UI URI URL UX
    XML YAML
    """
)

# Names that begin small and have a capital inside.
SMALL_FIRST_NAMES = _words(
    """
    eBay eBPF eGPU eSIM gRPC iCloud iMac iMessage iOS iPad iPadOS iPhone iPod iTunes jQuery kWh macOS mRNA pH
    qPCR tvOS useContext useEffect useMemo useReducer useRef useState watchOS
    """
)

# Names that anyone may use for what a message shows or means.
COMMON_NAMES = _words(
    """
    api apis ai app apps ascii bash bios cd ci cli cors cpu cpus crud css csv cv db dm dns dom email
    emails excel faq gb gif git github gpu gpus gui hr html http https english eu id ids ide io ip json
    kb lan latex llm mb ml n+1 nas ok oom orm os pc pdf pdfs png pr prs qa regex rest sdk seo sql ssd
    ssh ssl svg tcp tls toml tsv tv ui uk unicode uri url urls us usb utc utf ux vm vms vpn wifi wi-fi
    xml yaml monday tuesday wednesday thursday friday saturday sunday january february march april may
    june july august september october november december christmas easter i
    """
)

# A name on one line may be inferred from any other word on it.
RELATED_NAMES = tuple(
    _words(line)
    for line in """
    kubernetes kubectl k8s pod pods helm
    postgres postgresql psql pg psycopg2 psycopg
    javascript js node npm const console jsx
    typescript ts tsx
    python py pip def pandas pd numpy np django flask pytest traceback
    numpy np
    pandas pd df
    matplotlib plt
    rust cargo crate crates fn
    ruby rails rb erb
    go golang goroutine func
    docker dockerfile compose container
    actions workflow
    react jsx usestate useeffect
    java jvm spring maven gradle
    cpp std hpp
    csharp ef
    php laravel composer
    kotlin kt
    swift swiftui xcode
    mongodb mongo
    elasticsearch elastic
    terraform tf
    tensorflow tf
    pytorch torch
    aws s3 ec2 lambda boto3 arn
    azure az
    vs vscode
    linux ubuntu debian systemd apt
    macos mac macbook
    """.strip().splitlines()
)

NUMBER_WORDS = {
    "0": "zero no without",
    "1": "one once first single a an un une ein eine uno una один одна 一",
    "2": "two twice second both couple pair half deux zwei dos due dois duas два две 二 两",
    "3": "three third trois drei tres tre três три 三",
    "4": "four fourth quarter quatre vier cuatro quattro quatro четыре 四",
    "5": "five fifth cinq fünf cinco cinque пять 五",
    "6": "six sixth sechs seis sei шесть 六",
    "7": "seven seventh week sept sieben siete sette sete семь 七",
    "8": "eight eighth huit acht ocho otto oito восемь 八",
    "9": "nine ninth neuf neun nueve nove девять 九",
    "10": "ten tenth dix zehn diez dieci dez десять 十",
    "11": "eleven onze elf",
    "12": "twelve dozen year douze zwölf",
    "15": "fifteen",
    "18": "eighteen",
    "20": "twenty vingt zwanzig veinte venti",
    "24": "day daily",
    "30": "thirty",
    "40": "forty",
    "50": "fifty",
    "60": "sixty",
    "90": "ninety",
    "100": "hundred",
    "1000": "thousand",
}

# Replies that say that there is no title.
NO_TITLE_ANSWERS = _phrases(
    """
    none; null; nil; n a; no title; no title needed; untitled; title; empty; not applicable; new chat;
    new conversation; your title; title here; your title here; keine; aucun; ninguno; нет; 無し; なし;
    无; 無
    """
)
