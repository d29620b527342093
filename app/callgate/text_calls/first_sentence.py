"""Tells by its first sentence whether an answer may have begun inside of thinking that the model's template opened.

Such thinking is shown by the `</think>` that ends it, which comes late. Until then the text is either held, or on its way to a
reader who must not see a thought. So only a sentence that does not speak as thoughts do lets it go: no first person that plans, no
user who is spoken about, no word about the task or about tools. In a script of which no words are known, nothing is shown by one.
No call runs or stays behind by this: it decides how early text is passed on.
"""

import re
from typing import Final

LEAST: Final = 12
"""Characters that are read at least: "Yes." says nothing, and the next sentence is read with it."""
MOST: Final = 120
"""Characters after which what has no end counts as a sentence."""

_END = re.compile(r"(?:[.!?…:][*_\"'”’»)\]]*(?=\s)|[。！？：]|\n)\s*\S")
"""The end of a sentence, with the first letter of the next: a short thought may end with the sentence."""
_KNOWN_SCRIPTS = re.compile(
    r"[\u0000-\u024f\u0300-\u036f\u0400-\u04ff\u1e00-\u1eff\u2000-\u2bff\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af\ufe0f\uff00-\uffef"
    r"\U0001f000-\U0001faff]*\Z"
)
_APOSTROPHE = "['’ʼ]"
_STARTS = re.compile(
    r"\W*(?:"
    rf"ok(?:ay)?|al(?:l )?right|right|well|so|now|hm+|h?mm+|uh+m?|a+h+|oh|wait|first(?:ly)?|let{_APOSTROPHE}?s?|we|i|he|she|they|to"
    r"|since|given|looking|thinking|thoughts?|reasoning|analy[sz]\w*|consider\w*|considering|need|needs|must|should|maybe|perhaps"
    r"|goals?|tasks?|plan|steps?|question|request|user\w*|query|input|context|constraints?|problem|got it|understood|simple|easy"
    r"|also|bon|voyons|bueno|bem|bene|dunque|allora|prim[aeo]\w*|d’abord|zuerst|erst(?:mal|ens)?|mal|gut|eerst|goed|najpierw|nejprve"
    r"|pierwsz\w*|oké?y?|oke|jadi|önce|trước|итак|ладно|так|хорошо|сначала|спочатку|добре|окей|начн\w*|давай\w*|надо|нужно"
    r")\b",
    re.IGNORECASE,
)
_MARKS = re.compile(
    # about the one who asked, and what was asked for
    r"\b(?:the|this|an?|our|my|that) (?:\w+ )?(?:users?|person|human|customer|question|quer(?:y|ies)|requests?|prompts?|tasks?|problem"
    r"|instructions?|conversation|messages?|puzzle|system)\b"
    rf"|\busers?(?:{_APOSTROPHE}s?)? (?:is|are|has|have|wants?|asks?|asked|needs?|said|says|might|may|seems?|provided|gave)\b"
    r"|\b(?:he|she|they|it)(?:['’]re|['’]s| is| are)? (?:wants?|asks?|asked|asking|needs?)\b"
    # plans in the first person
    rf"|\bi(?:{_APOSTROPHE}(?:ll|m|d|ve)| (?:need|should|must|can|could|will|would|think|have|had|recall|remember|know|wonder|guess|want|am|was|do))\b"
    rf"|\b(?:let{_APOSTROPHE}?s|let me|let us|we(?:{_APOSTROPHE}(?:ll|re|ve|d))?|hmm+|wait|maybe|perhaps)\b"
    r"|\b(?:need|have|has|want) to\b|\bneeds? an?\b|\bshould (?:i|we|be)\b"
    r"|\b(?:thinking|thought) process\b|\breasoning\b"
    # tools
    r"|\b(?:tools?|functions?|tool[_ ]calls?|call(?:s|ing)?|arguments?|parameters?|api)\b"
    # the same in other languages
    r"|\b(?:nutzer\w*|benutzer\w*|anwender\w*|ich|wir|mir|aufgabe|frage)\b"
    rf"|utilisat\w+|\bje\b|\bj{_APOSTROPHE}|\bnous\b|\bil faut\b|\bla (?:question|demande)\b"
    r"|\b(?:usu[aá]rio|usuari[oa]|necesito|preciso|debo|devo|vamos|tengo que|tenho que|quiere|quer|pregunta|pergunta)\b"
    r"|\b(?:l['’]utente|vediamo|dobbiamo|domanda)\b"
    r"|\b(?:gebruiker\w*|ik|we|laten|vraag)\b|\b(?:u[żz]ytkowni\w+|uživatel\w*|muszę|mus[ií]m\w*|pytanie|otázka)\b"
    r"|\b(?:kullanıcı\w*|pengguna|saya|kita|người dùng|tôi|användar\w*|bruger\w*|bruker\w*|jag|jeg|käyttäjä\w*|minun)\b"
    r"|пользовател\w*|користувач\w*|\b(?:я|мы|мне|нам|нужно|надо|вопрос|запрос|треба|потрібно|давай\w*)\b"
    r"|用[户戶]|使用者|好的|嗯|首先|我|咱|让|讓|需要|应该|應該|题|題|问|問|看起来|这个|這個|工具|函数|那么"
    r"|ユーザ|まず|うーん|さて|質問|必要|考え|えっと|なるほど|私|ツール|関数|依頼"
    r"|사용자|먼저|우선|음|그럼|질문|해야|필요|도구|함수|좋아",
    re.IGNORECASE,
)


def shows_no_thinking(text: str) -> bool | None:
    """Judge the first sentence of this beginning of an answer; None while it is not whole. What follows it changes nothing."""
    begin = len(text) - len(text.lstrip())
    end = _END.search(text, begin + LEAST, begin + MOST)
    if end is not None:
        sentence = text[begin : end.end() - 1]
    elif len(text) >= begin + MOST:
        sentence = text[begin : begin + MOST]
    else:
        return None
    if _KNOWN_SCRIPTS.match(sentence) is None:
        return False
    return not (_STARTS.match(sentence) or _MARKS.search(sentence))
