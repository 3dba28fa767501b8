"""Answers that follow IFEval's instructions, written from the instructions' wording and not from the checkers."""

PLAIN = "this is a good plain reply and we hope that it will do what you need today"
LETTERS = (
    "we do go by ship / my big dog is ill / all will be full / i run up hill / her cat sat / ox"
)
FOREIGN = {
    "ar": "هذا يوم جميل ونحن ذاهبون إلى السباحة في البحر مع أصدقائنا",
    "bg": "Това е хубав ден и ние отиваме да плуваме в морето с нашите приятели",
    "bn": "আজ একটি সুন্দর দিন এবং আমরা বন্ধুদের সাথে সাঁতার কাটতে যাচ্ছি",
    "de": "Das ist ein schöner Tag und wir gehen heute mit unseren Freunden schwimmen",
    "fa": "امروز روز زیبایی است و ما با دوستان خود برای شنا به دریا می‌رویم",
    "fi": "Tämä on kaunis päivä ja me menemme uimaan ystäviemme kanssa",
    "gu": "આજે સુંદર દિવસ છે અને અમે મિત્રો સાથે તરવા જઈ રહ્યા છીએ",
    "hi": "आज एक सुंदर दिन है और हम अपने दोस्तों के साथ तैरने जा रहे हैं",
    "it": "Questa è una bella giornata e andiamo a nuotare con i nostri amici",
    "kn": "ಇಂದು ಸುಂದರ ದಿನ ಮತ್ತು ನಾವು ಸ್ನೇಹಿತರೊಂದಿಗೆ ಈಜಲು ಹೋಗುತ್ತಿದ್ದೇವೆ",
    "ko": "오늘은 아름다운 날이고 우리는 친구들과 수영하러 갑니다",
    "mr": "आज सुंदर दिवस आहे आणि आम्ही आमच्या मित्रांसोबत पोहायला जात आहोत",
    "ne": "आज राम्रो दिन छ र हामी साथीहरूसँग पौडी खेल्न जाँदैछौं",
    "pa": "ਅੱਜ ਇੱਕ ਸੁੰਦਰ ਦਿਨ ਹੈ ਅਤੇ ਅਸੀਂ ਦੋਸਤਾਂ ਨਾਲ ਤੈਰਨ ਜਾ ਰਹੇ ਹਾਂ",
    "pt": "Este é um lindo dia e nós vamos nadar com os nossos amigos",
    "ru": "Сегодня прекрасный день и мы идём купаться с нашими друзьями",
    "sw": "Hii ni siku nzuri na sisi tunaenda kuogelea na marafiki zetu",
    "ta": "இன்று அழகான நாள் நாங்கள் நண்பர்களுடன் நீந்தச் செல்கிறோம்",
    "te": "ఈరోజు అందమైన రోజు మరియు మేము స్నేహితులతో ఈత కొట్టడానికి వెళ్తున్నాము",
    "th": "วันนี้เป็นวันที่สวยงามและเรากำลังไปว่ายน้ำกับเพื่อนของเรา",
    "ur": "آج ایک خوبصورت دن ہے اور ہم دوستوں کے ساتھ تیرنے جا رہے ہیں",
    "vi": "Hôm nay là một ngày đẹp trời và chúng tôi đi bơi với bạn bè",
}


def following(row):
    """An answer that follows every instruction of an IFEval row."""
    rule, bounds = {}, {}
    for name, given in zip(row["instruction_id_list"], row["kwargs"], strict=True):
        kind = name.partition(":")[2]
        rule[kind] = given
        least = given.get("relation") == "at least"
        amount = given.get("num_words") or given.get("num_sentences") or given.get("frequency")
        bounds.setdefault((kind, least), []).append((amount, given.get("keyword")))
    rule["bounds"] = bounds
    sentence = filler(rule)
    parts = [paragraph(rule, sentence, n) for n in range(1, count_of_parts(rule) + 1)]
    text = ("\n\n" if "nth_paragraph_first_word" in rule else "\n***\n").join(parts)
    text = before(rule) + text + "".join(behind(rule))
    if "json_format" in rule:
        text = '{"reply": "' + text.replace('"', "'").replace("\n", " ") + '"}'
    if "two_responses" in rule:
        text = f"{text}\n******\n{text} so we say it twice."
    if "english_capital" in rule:
        text = text.upper()
    if "english_lowercase" in rule:
        text = text.lower()
    return f'"{text}"' if "quotation" in rule else text


def filler(rule):
    """A sentence without what is forbidden, in the language wanted."""
    if "response_language" in rule:
        return FOREIGN[rule["response_language"]["language"]]
    rare = rule.get("letter_frequency", {})
    if rare.get("let_relation") == "less than":
        return next(s for s in LETTERS.split(" / ") if rare["letter"].lower() not in s)
    banned = set(rule.get("forbidden_words", {}).get("forbidden_words", ()))
    return " ".join(word for word in PLAIN.split() if word not in banned)


def count_of_parts(rule):
    given = rule.get("number_paragraphs") or rule.get("nth_paragraph_first_word") or {}
    return given.get("num_paragraphs", 1)


def paragraph(rule, sentence, number):
    nth = rule.get("nth_paragraph_first_word", {})
    first = f"{nth['first_word']} " if nth.get("nth_paragraph") == number else ""
    if number > 1:
        return f"{first}{sentence}."
    words, _ = bound(rule, "number_words")
    sentences, most = bound(rule, "number_sentences")
    if sentences and bound(rule, "number_words")[1] < float("inf"):
        sentence = "we go"
    times = max(1, sentences, -(-words // len(sentence.split())))
    between = " and " if times >= most else ". "  # a sentence begins behind a full stop
    return first + between.join([sentence] * times).capitalize() + "."


def bound(rule, kind):
    """At least so many (0: no bound), fewer than so many (infinity: no bound)."""
    least = max((n for n, _ in rule["bounds"].get((kind, True), ())), default=0)
    return least, min((n for n, _ in rule["bounds"].get((kind, False), ())), default=float("inf"))


def before(rule):
    repeated = rule.get("repeat_prompt", {}).get("prompt_to_repeat", "")
    title = "<<a title>>\n" if "title" in rule else ""
    return (f"{repeated}\n" if repeated else "") + title


def behind(rule):
    """What is added after the body, each at most once."""
    yield "".join(f"\n{w}" for w in rule.get("existence", {}).get("keywords", ()))
    for times, keyword in rule["bounds"].get(("frequency", True), ()):
        yield f" {keyword}" * times
    letter = rule.get("letter_frequency", {})
    wanted = letter.get("let_frequency", 0) if letter.get("let_relation") == "at least" else 0
    yield " " + letter.get("letter", "") * wanted if wanted else ""
    yield " [blank]" * rule.get("number_placeholders", {}).get("num_placeholders", 0)
    yield " with *this*" * rule.get("number_highlighted_sections", {}).get("num_highlights", 0)
    capital = rule.get("capital_word_frequency", {})
    yield " NOW" * (
        capital["capital_frequency"] if capital.get("capital_relation") == "at least" else 0
    )
    cut = rule.get("multiple_sections", {})
    yield "".join(
        f"\n{cut['section_spliter']} {n}\nok" for n in range(1, cut.get("num_sections", 0) + 1)
    )
    yield "\n- a point" * rule.get("number_bullet_lists", {}).get("num_bullets", 0)
    yield (
        f"\n{rule['postscript']['postscript_marker']} one more word" if "postscript" in rule else ""
    )
    yield f"\n{rule['end_checker']['end_phrase']}" if "end_checker" in rule else ""
