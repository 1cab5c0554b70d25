"""The client's request body, and what each leg is sent of it.

The body is taken apart only at its top level: each value keeps the client's own bytes, so
integers of any size, floats, escapes and the order of keys reach the engines as they came.

The decode leg is the client's body with `kv_transfer_params` appended. The prefill leg is the
same body without what ends an answer early, lengthens it, or constrains what is generated: it
has to make exactly one token, which nobody sees, and hand over the blocks of the prompt.
Everything that shapes the prompt, known or not, stays in both.

`tool_choice` "required" or a named function becomes "auto" on the prefill leg: the tools stay
in the prompt, while "none" would take them out of it on servers that run with
--exclude-tools-when-tool-choice-none.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from kvplane_services.gateway.json_faults import fault_of
from kvplane_services.gateway.openai_errors import OpenAIError

_PARAMS = "kv_transfer_params"
_ONE = msgspec.Raw(b"1")
_TRUE = msgspec.Raw(b"true")
_AUTO = msgspec.Raw(b'"auto"')
_NULL = b"null"
# A list of texts, or of lists of token ids. A list of numbers is one prompt.
_PROMPTS = re.compile(rb'\[\s*["\[]')

# All names under which clients limit the length of an answer; the leg keeps those it came with.
_LENGTH_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")

# Fields of the client that a prefill leg does without.
_NOT_FOR_PREFILL = frozenset(
    {
        _PARAMS,
        # How the answer is delivered.
        "stream",
        "stream_options",
        "stream_interval",
        "request_id",
        # How many answers, and how long they must get.
        "n",
        "best_of",
        "use_beam_search",
        "min_tokens",
        # What ends an answer.
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "repetition_detection",
        # What is told about it.
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "logprob_token_ids",
        "echo",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "return_prompt_text",
        # What constrains it.
        "structured_outputs",
        "response_format",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "guided_decoding_backend",
        "guided_whitespace_pattern",
        "thinking_token_budget",
    }
)


@dataclass(frozen=True, slots=True)
class ClientBody:
    """A request body, taken apart at its top level.

    Attributes:
        raw: The bytes as they came.
        fields: Each top-level value in the client's own bytes.
        model: The model asked for.
        chat: Whether this is a chat completion, else a completion.

    """

    raw: bytes
    fields: Mapping[str, msgspec.Raw]
    model: str
    chat: bool

    @classmethod
    def parse(cls, raw: bytes, *, chat: bool) -> "ClientBody":
        """Takes a body apart.

        Raises:
            OpenAIError: The body is not a JSON object, or lacks what every turn needs.

        """
        try:
            fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        except msgspec.ValidationError as error:
            raise OpenAIError(
                400, "the request body must be a JSON object", code="invalid_json"
            ) from error
        except msgspec.DecodeError as error:
            raise OpenAIError(400, fault_of(raw, error), code="invalid_json") from error
        except RecursionError as error:
            raise OpenAIError(
                400, "the request body is nested too deeply", code="invalid_json"
            ) from error
        prompt = "messages" if chat else "prompt"
        if chat and prompt not in fields:
            raise OpenAIError(
                400,
                "the field 'messages' is missing: send the conversation as a list of messages",
                code="missing_required_parameter",
                param=prompt,
            )
        return cls(raw=raw, fields=fields, model=_model(fields), chat=chat)

    def text(self, field: str) -> str:
        """The value of a field if it is a string, else the empty string."""
        value = self.fields.get(field)
        if value is None or not bytes(value).startswith(b'"'):
            return ""
        try:
            return msgspec.json.decode(value, type=str)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ""

    def number(self, field: str) -> int:
        """The value of a field if it is a whole number above 0, else 0."""
        value = self.fields.get(field)
        try:
            return 0 if value is None else max(0, msgspec.json.decode(value, type=int))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return 0

    def has(self, field: str) -> bool:
        """Whether a field is there with a value other than null and false."""
        value = self.fields.get(field)
        return value is not None and bytes(value) not in (_NULL, b"false")

    @property
    def max_output_tokens(self) -> int:
        """Tokens that the client allows the answer; 0 if it does not say."""
        return next((limit for name in _LENGTH_LIMITS if (limit := self.number(name))), 0)

    @property
    def one_sequence(self) -> bool:
        """Whether one prompt is continued by sampling, so that blocks can be handed over for it.

        Each of several prompts or choices would read the same blocks, which a prefill engine
        gives away with the first read: the others could read what lies there by then. A beam
        search does not pass `kv_transfer_params` on.
        """
        several_choices = self.number("n") > 1 or self.number("best_of") > 1
        several_prompts = not self.chat and self._many_prompts()
        return not (several_choices or several_prompts or self.has("use_beam_search"))

    @property
    def asks_about_prompt(self) -> bool:
        """Whether the answer tells of each prompt token, so that one engine computes them all."""
        if self.has("prompt_logprobs"):
            return True
        return self.has("echo") and (self.chat or self.has("logprobs"))

    def prefill_leg(self, params: bytes, *, keeps: frozenset[str] = frozenset()) -> bytes:
        """The body of the prefill leg.

        Args:
            params: `kv_transfer_params`, a JSON object.
            keeps: Fields that constrain the answer and are to stay all the same.

        """
        leg = {
            name: value
            for name, value in self.fields.items()
            if name not in _NOT_FOR_PREFILL or name in keeps
        }
        limits = [name for name in _LENGTH_LIMITS if name in leg]
        for name in limits or ["max_tokens"]:
            leg[name] = _ONE
        choice = bytes(leg.get("tool_choice", b""))
        if (
            "tool_choice" not in keeps
            and choice not in (b'"none"', b'"auto"', _NULL)
            and "tool_choice" in leg
        ):
            leg["tool_choice"] = _AUTO
        # An end-of-sequence token as the first one would end the leg before its limit does,
        # and connectors differ in whether they hand over blocks then.
        leg["ignore_eos"] = _TRUE
        leg[_PARAMS] = msgspec.Raw(params)
        return msgspec.json.encode(leg)

    def decode_leg(self, params: bytes | None) -> bytes:
        """The body of the decode leg: the client's, with our `kv_transfer_params` or none."""
        if _PARAMS in self.fields:
            leg = {name: value for name, value in self.fields.items() if name != _PARAMS}
            if params is not None:
                leg[_PARAMS] = msgspec.Raw(params)
            return msgspec.json.encode(leg)
        if params is None:
            return self.raw
        # Every body has a model, so there is a field to put a comma after.
        end = self.raw.rindex(b"}")
        return b"".join((self.raw[:end], b',"kv_transfer_params":', params, self.raw[end:]))

    def _many_prompts(self) -> bool:
        prompt = self.fields.get("prompt")
        return prompt is not None and _PROMPTS.match(prompt) is not None


def _model(fields: Mapping[str, msgspec.Raw]) -> str:
    try:
        model = msgspec.json.decode(fields["model"], type=str)
    except KeyError:
        model = ""
    except msgspec.ValidationError as error:
        raise OpenAIError(
            400, "the field 'model' must be a string", code="invalid_type", param="model"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OpenAIError(
            400, "the field 'model' is not valid UTF-8", code="invalid_type", param="model"
        ) from error
    if not model:
        raise OpenAIError(
            400,
            "the field 'model' is missing: name one of the models that GET /v1/models lists",
            code="missing_required_parameter",
            param="model",
        )
    return model
