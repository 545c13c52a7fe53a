"""Sensitive fields: what they are, and where their values are not."""

import reprlib
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from dagster_sqlqueue import Cancel, Consumer, Hold, QueueSpec, Reject, Retry, Sensitive, SqlQueue, versioned
from dagster_sqlqueue.errors import InvalidPayload
from dagster_sqlqueue.payload.redaction import names_in, redacted, redacted_text, scrubbed, values_in
from tests.support import Work, rows

SECRET = "correct 'horse' \"ü"


class Card(BaseModel):
    number: Annotated[str, Sensitive()]
    kind: str = "debit"


class Node(BaseModel):
    key: Annotated[int, Sensitive()] = 0
    below: "list[Node]" = []


class Login(BaseModel):
    user: str
    password: Annotated[str, Sensitive()]
    tries: int = 0


class Order(BaseModel):
    id: int
    pin: int = Field(default=0, json_schema_extra={"x-sensitive": True})
    cards: list[Card] = []
    by_name: dict[str, Card] = {}
    tokens: list[Annotated[str, Sensitive()]] = []
    secrets: dict[str, Annotated[str, Sensitive()]] = {}
    choice: Card | Login | None = None
    whole: Annotated[Node | None, Sensitive()] = None
    api_key: Annotated[str | None, Sensitive()] = Field(default=None, alias="apiKey")
    opaque: Annotated[object, Sensitive()] = None


logins = QueueSpec("work", Login, bucket_count=4, max_attempts=1)


def test_the_names_are_found_at_any_depth() -> None:
    assert names_in(Work) == set()
    assert names_in(Card) == {"number"}
    assert names_in(Node) == {"key"}
    assert names_in(Order) == {
        *("pin", "number", "tokens", "secrets", "password", "whole", "key", "apiKey", "api_key", "opaque")
    }


def test_a_model_that_has_no_json_schema_has_its_names_all_the_same() -> None:
    class Strange(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        thing: complex = 0j
        lock: Any = Field(default_factory=object)
        code: Annotated[str, Sensitive()] = ""

    assert names_in(Strange) == {"code"}


def test_values_are_redacted_wherever_the_name_stands() -> None:
    payload = {
        "id": 1,
        "pin": 5,
        "cards": [{"number": "4", "kind": "x"}],
        "deep": {"a": [{"pin": {"b": [1]}}]},
        "key": None,
    }
    assert redacted(payload, {"pin", "number", "key"}) == {
        "id": 1,
        "pin": "***",
        "cards": [{"number": "***", "kind": "x"}],
        "deep": {"a": [{"pin": "***"}]},
        "key": None,
    }
    assert redacted_text('{"a": "ü", "b": [1]}', {"b"}) == '{"a": "ü", "b": "***"}'
    assert redacted_text('{"a":1}', set()) == '{"a":1}'
    assert values_in(payload, {"pin", "number"}) == {"5", "4", "1"}


def test_a_text_is_scrubbed_of_every_form_of_a_value() -> None:
    said = f"{SECRET} / {SECRET!r} / { ({'k': SECRET}) } / correct%20%27horse%27%20%22%C3%BC"
    clean = scrubbed(said, {SECRET})
    assert "horse" not in clean
    assert clean.count("***") == 4
    assert scrubbed("a cat, cats and 12 of 123", {"cat", "12"}) == "a ***, cats and *** of 123"
    assert scrubbed("nothing", {"secret"}) == "nothing"


def test_a_value_that_is_quoted_in_part_is_scrubbed_too() -> None:
    token = "eyJhbGciOiJIUzI1NiJ9." + "payload" * 20 + ".signature-of-the-token"

    class Numbers(BaseModel):
        first: str = ""
        token: int

    said = []
    for given in ({"token": token}, {"first": "a", "token": token}, {"token": 1, "first": [token]}, [token]):
        with pytest.raises(ValidationError) as refused:
            Numbers.model_validate(given)
        said.append(str(refused.value))
    said.append(reprlib.repr(token))
    for text in said:
        assert "..." in text
        assert "eyJhb" in text
        clean = scrubbed(text, {token})
        assert "eyJhb" not in clean
        assert "token'" not in clean.replace("'token'", "")
    assert scrubbed("and so on... or…", {token}) == "and so on... or…"


def raises(text: str) -> Any:
    raise ValueError(text)


def chained(text: str) -> Any:
    try:
        raise ValueError(text)
    except ValueError as error:
        error.add_note(f"noted {text}")
        raise RuntimeError("outer") from error


@pytest.mark.parametrize("mode", ["leased", "transactional"])
@pytest.mark.parametrize("says", [raises, chained, Retry, Reject, Cancel, Hold])
def test_no_error_quotes_a_value(queue: SqlQueue, says: Any, mode: str) -> None:
    queue.enqueue(logins, Login(user="ada", password=SECRET))
    Consumer(queue, logins, lambda job: says(f"ada and {job.payload.password}"), mode=mode).drain()
    ((error,),) = rows(queue, "SELECT error FROM {s}.job UNION ALL SELECT error FROM {s}.job_archive")
    assert "horse" not in error
    assert "ada and ***" in error


def test_other_fields_and_other_queues_are_quoted(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=77, note="plainly"))
    Consumer(queue, spec, lambda job: Reject(f"{job.payload}")).drain()
    assert queue.dead_letters("work")[0].error == "n=77 note='plainly'"


def test_a_payload_that_does_not_fit_is_not_quoted(queue: SqlQueue) -> None:
    class Strict(Login):
        tries: int = 0

        @field_validator("password", "user")
        @classmethod
        def long(cls, value: str) -> str:
            if len(value) < 50:
                raise ValueError(f"{value!r} is too short")
            return value

    strict = QueueSpec("work", Strict)
    for payload in ({"user": "ada", "password": SECRET}, {"user": SECRET, "password": SECRET, "tries": "x"}):
        with pytest.raises(InvalidPayload) as refused:
            queue.enqueue(strict, payload)  # type: ignore[arg-type]
        assert "horse" not in str(refused.value)
        assert "password: is not usable (sensitive, so not quoted)" in str(refused.value)
    with pytest.raises(InvalidPayload, match="password: Field required"):
        queue.enqueue(strict, {"user": "x" * 60})  # type: ignore[arg-type]
    queue.enqueue(logins, Login(user=SECRET, password=SECRET))
    Consumer(queue, strict, lambda job: None).drain()
    error = queue.dead_letters("work")[0].error
    assert error is not None
    assert "horse" not in error
    assert "user: Value error, '***' is too short" in error


def test_the_names_of_older_versions_count_too(queue: SqlQueue) -> None:
    @versioned(2, {1: lambda old: {"secret": old["pin"]}}, sensitive=["pin"])
    class Renamed(BaseModel):
        secret: Annotated[str, Sensitive()]

    class Old(BaseModel):
        pin: str

    queue.enqueue(QueueSpec("work", Old), Old(pin=SECRET))
    Consumer(queue, QueueSpec("work", Renamed), lambda job: Reject(job.payload.secret)).drain()
    assert queue.dead_letters("work")[0].error == "***"
    assert queue.catalog.sensitive_names("work") == {"pin", "secret"}


def test_the_database_knows_the_names_and_forgets_none(queue: SqlQueue) -> None:
    assert queue.catalog.sensitive_names("work") == set()
    queue.create_queue(logins)
    assert queue.catalog.sensitive_names("work") == {"password"}
    Consumer(queue, QueueSpec("work", Card), lambda job: None).drain()
    queue.create_queue(QueueSpec("work", Work))
    assert queue.catalog.sensitive_names("work") == {"password", "number"}
    assert queue.catalog.sensitive_names("nothing") == set()
    queue.catalog.keep_sensitive_names(QueueSpec("nothing", Card))
    assert queue.catalog.sensitive_names("nothing") == set()
