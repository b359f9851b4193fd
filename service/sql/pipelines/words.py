"""The words of a file in Spark's SQL, for the parser of the statements around queries."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot.dialects.databricks import Databricks
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from service.domain.errors import Invalid

_TEXTS: Final = frozenset({TokenType.STRING, TokenType.RAW_STRING, TokenType.NATIONAL_STRING})


@dataclass(frozen=True, slots=True)
class Word:
    """A word, name, text or symbol. `text` is without quotes, and `start` and `end` are offsets in the file."""

    text: str
    start: int
    end: int
    quoted: bool = False
    is_text: bool = False

    def says(self, word: str) -> bool:
        """Whether it is this word or symbol, in any case and without quotes."""
        return not self.quoted and not self.is_text and self.text.upper() == word

    @property
    def is_name(self) -> bool:
        """Whether it can be a name."""
        return self.quoted or (not self.is_text and self.text.replace("_", "a").isalnum())


def statements(text: str) -> Iterator[tuple[Word, ...]]:
    """Yield the words of each statement that is not empty. Raises Invalid if the text cannot be split."""
    try:
        tokens = Databricks().tokenize(text)
    except SqlglotError as error:
        raise Invalid(f"this is no SQL: {error}", position=1) from None
    words: list[Word] = []
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            if words:
                yield tuple(words)
            words = []
        else:
            words += _words(token)
    if words:
        yield tuple(words)


def _words(token: Token) -> list[Word]:
    if token.token_type in _TEXTS:
        return [Word(token.text, token.start, token.end + 1, is_text=True)]
    if token.token_type is TokenType.IDENTIFIER:
        return [Word(token.text, token.start, token.end + 1, quoted=True)]
    # `PARTITIONED BY` is one token.
    return [Word(part, token.start, token.end + 1) for part in token.text.split() or [token.text]]


class Reader:
    """A position in the words of a statement."""

    def __init__(self, words: Sequence[Word]) -> None:
        self._words, self._at = words, 0

    @property
    def word(self) -> Word | None:
        """The word to read next, None at the end."""
        return self._words[self._at] if self._at < len(self._words) else None

    @property
    def position(self) -> int:
        """The 1-based place of the next word, or of the last one at the end."""
        return (self.word or self._words[-1]).start + 1

    def advance(self) -> Word:
        """Read a word. Raises Invalid at the end."""
        word = self.word
        if word is None:
            raise Invalid("the statement ends too early", position=self.position)
        self._at += 1
        return word

    def accept(self, *words: str) -> bool:
        """Read these words if all of them come next; otherwise read nothing."""
        ahead = self._words[self._at : self._at + len(words)]
        found = len(ahead) == len(words) and all(one.says(word) for one, word in zip(ahead, words, strict=True))
        self._at += len(words) if found else 0
        return found

    def expect(self, *words: str) -> None:
        """Read these words. Raises Invalid at others."""
        if not self.accept(*words):
            found = "the end" if self.word is None else f'"{self.word.text}"'
            raise Invalid(f"{' '.join(words)} is expected, not {found}", position=self.position)

    def string(self) -> str:
        """Read a text in quotes, which may come in pieces. Raises Invalid at another word."""
        word = self.advance()
        if not word.is_text:
            raise Invalid(f'a text in quotes is expected, not "{word.text}"', position=word.start + 1)
        found = word.text
        while self.word is not None and self.word.is_text:
            found += self.advance().text
        return found

    def name(self) -> str:
        """Read one name, folded to lower case unless it is in backticks. Raises Invalid at another word."""
        word = self.advance()
        if not word.is_name:
            raise Invalid(f'a name is expected, not "{word.text}"', position=word.start + 1)
        return word.text if word.quoted else word.text.lower()

    def parts(self) -> tuple[str, ...]:
        """Read a name with what stands before its dots. Raises Invalid."""
        found = [self.name()]
        while self.accept("."):
            found.append(self.name())
        return tuple(found)

    def in_parentheses(self) -> tuple[Word, ...]:
        """Read what is in parentheses, which come next. Raises Invalid."""
        self.expect("(")
        found: list[Word] = []
        depth = 1
        while depth:
            word = self.advance()
            depth += word.says("(") - word.says(")")
            found.append(word)
        return tuple(found[:-1])

    def rest(self) -> tuple[Word, ...]:
        """Read everything that is left."""
        found = tuple(self._words[self._at :])
        self._at = len(self._words)
        return found
