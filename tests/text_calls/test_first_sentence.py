"""An answer that may have begun inside of thinking is held until its first sentence shows that it is none."""

import random

import pytest

from callgate.conversation.events import ModelEvent, ReasoningDelta, TextDelta
from callgate.text_calls.first_sentence import MOST, shows_no_thinking
from callgate.text_calls.reader import FORMATS, reader_for
from tests.text_calls.reading import TOOLS, batched, corpus_texts, cut_everywhere, merged, text_of_events

THOUGHTS = [
    "Okay, the user wants the weather in Paris. I need to look it up.",
    "Alright, so I have this problem where a train leaves Paris. It goes",
    "The user is asking about the weather in Paris. Maybe a tool helps.",
    "The question asks for the sum of two numbers. It is 42.",
    "We need to respond with the weather. No tool is there.",
    "Need weather and UV for Montréal. Two calls then.",
    "This needs a complex query. Then the rows are counted.",
    "They ask for Lima. The other city was Nice.",
    "Hmm, let me think about how to solve this. There are",
    "First, I should check the weather. Then the time.",
    "Let me look at the file contents first. Then edit.",
    "Thinking Process:\n\n1. **Analyze the Request:** weather",
    "**Analyzing the user's request**\n\nThe city is Paris.",
    "1. **Understand the task**: the sum of two numbers. 2.",
    "Here's a thinking process that leads to the suggested answer:\n\n1.",
    "The tool returned 18 degrees. So the answer is",
    "To find the sum of 12 and 30, add them. That is",
    "So the task is to sort the list by size. Begin with",
    "I recall that Paris is in France. Its weather",
    "Got it, the weather tool takes a city. Then call it.",
    "User wants 3 jokes. Provide them in short form.",
    "Looking at the data, I see three entries. The first",
    "Simple arithmetic: 12 + 30 = 42. Done with it.",
    "It seems the user made a typo in the city name. They meant",
    "Should be simple. Just answer with a greeting. Done.",
    "好的，用户想知道巴黎的天气。我需要调用工具来查询一下。",
    "嗯，用户问的是巴黎的天气，首先我要查一下天气工具。然后回答。",
    "我们需要计算12加30的结果，这是一个简单的加法问题。答案是42。",
    "まず、ユーザーはパリの天気を知りたがっています。ツールを使います。",
    "사용자가 파리의 날씨를 묻고 있습니다. 그래서 도구를 사용해야 합니다.",
    "Der Nutzer möchte das Wetter in Paris wissen. Also",
    "Okay, der Benutzer fragt nach dem Wetter. Mal sehen.",
    "L'utilisateur demande la météo à Paris. Il faut",
    "El usuario quiere saber el clima de París. Entonces",
    "O usuário quer saber o clima em Paris. Preciso",
    "L'utente vuole sapere il tempo a Parigi. Devo",
    "Хорошо, пользователь хочет узнать погоду. Нужно",
    "Użytkownik pyta o pogodę w Paryżu. Muszę sprawdzić",
    "المستخدم يسأل عن الطقس في باريس. يجب أن أبحث",
    "उपयोगकर्ता पेरिस का मौसम जानना चाहता है। मुझे",
]
"""First sentences of the thinking of models, and what follows them."""
ANSWERS = [
    "Hello! How can I help you today with your plans? Ask away.",
    "The weather in Paris is sunny with 18 degrees. Take a coat.",
    "Once upon a time there was a fox. It lived",
    "Paris is the capital of France. It is known for",
    "Here is a list of fruits:\n- apple\n- pear",
    "Sure! Here's the code that does it:\n```python",
    "Certainly! Below is a short story about a fox. Once",
    "# The history of Rome\n\nRome was founded",
    "12 + 30 equals 42. That is it.",
    "word " * 40,
    "It is 18 degrees in Paris right now. Enjoy",
    "Yes, Python lists are mutable. You can append",
    "There are seven continents on Earth. They are",
    "Your order has been shipped. It will arrive",
    "A closure is an inner scope that keeps its variables. For",
    "Das Wetter in Paris ist sonnig bei 18 Grad. Viel Spaß",
    "Le temps à Paris est ensoleillé. Bonne journée",
    "El clima en París es soleado. Disfruta",
    "巴黎今天天气晴朗，气温18度。祝你玩得开心。",
    "パリの今日の天気は晴れです。気温は18度です。",
    "Погода в Париже солнечная, 18 градусов. Приятного дня",
]
END = "\n</think>\n\n"
ANSWER = "It is 18 degrees in Paris."


def read(pieces: list[str], *, format: str = "hermes") -> list[ModelEvent]:
    reader = reader_for(format, TOOLS, thinking="by_first_sentence")
    events: list[ModelEvent] = []
    for piece in pieces:
        events += reader.feed(piece)
    return merged(events + reader.finish())


@batched("thought", THOUGHTS)
def test_nothing_of_a_thought_reaches_the_answer(thought):
    assert shows_no_thinking(thought) is not True
    for text in (thought, f"\n{thought}", f"{thought}\n\nSo it is decided. The answer is clear."):
        pieces = [list(text + END + ANSWER), *cut_everywhere(text + END + ANSWER, 7)]
        for cut in pieces:
            events = read(cut)
            assert text_of_events(events).strip() == ANSWER
            reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
            assert reasoning.strip() == text.strip()


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_nor_in_any_format(format):
    for thought in THOUGHTS[::9]:
        assert "user" not in text_of_events(read([*(thought + END + ANSWER)], format=format))


@batched("answer", ANSWERS)
def test_an_answer_is_passed_on_behind_its_first_sentence(answer):
    reader = reader_for("hermes", TOOLS, thinking="by_first_sentence")
    assert [event for letter in answer for event in reader.feed(letter)]
    assert text_of_events(read([*answer])).strip() == answer.strip()


def test_a_short_thought_that_ends_with_its_sentence_is_held():
    for thought in ("Easy.", "Weather in Paris it is.", "Plan", "x"):
        assert text_of_events(read([*(thought + END + ANSWER)])).strip() == ANSWER


def test_the_judgement_of_a_beginning_does_not_change_with_what_follows():
    for text in THOUGHTS + ANSWERS:
        judged = [shows_no_thinking(text[:size]) for size in range(len(text) + 1)]
        settled = [each for each in judged if each is not None]
        assert len(set(settled)) <= 1
        assert judged == [None] * (len(judged) - len(settled)) + settled


def test_no_more_than_a_sentence_is_held():
    assert shows_no_thinking("word " * MOST) is True
    assert shows_no_thinking("   \n\n") is None


def test_the_same_is_read_of_a_text_however_it_is_cut():
    chance = random.Random(8)
    scraps = [
        *THOUGHTS[::4],
        *ANSWERS[::3],
        "</think>",
        "<think>",
        "</think",
        "\n",
        "<tool_call>",
        "`",
        "```\n",
        " < ",
        "Hi. ",
    ]
    for _ in range(400):
        text = "".join(chance.choices(scraps, k=chance.randint(1, 6)))
        whole = read([text])
        assert read([*text]) == whole, text
        places = sorted(chance.sample(range(len(text) + 1), min(3, len(text))))
        assert read([text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]) == whole, text


def test_the_texts_of_the_corpus_are_read_the_same_however_they_are_cut():
    for id, format, text in corpus_texts():
        if len(text) < 2000:
            assert read([*text], format=format) == read([text], format=format), id


def test_what_the_provider_sent_apart_as_thinking_ends_the_hold():
    reader = reader_for("hermes", TOOLS, thinking="by_first_sentence")
    reader.end_hold()
    assert reader.feed("Okay, ") == [TextDelta("Okay, ")]
