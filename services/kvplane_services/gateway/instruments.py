"""What the gateway counts and measures. No label holds anything that a client chose."""

from dataclasses import dataclass

from opentelemetry.metrics import Counter, Histogram, UpDownCounter

from kvplane_services.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Instruments:
    """The gateway's instruments.

    Attributes:
        turns: Turns by strategy, reason and outcome.
        legs: Legs by leg and outcome.
        retries: Legs that ran again elsewhere, by leg and why.
        without_params: Prefill answers without `kv_transfer_params`: the decode engine computed
            the prompt again.
        fixed_retentions: Turns on engines with the stock connector that keep them, by what is known
            of the blocks: leased; streamed (the answer did not tell); untold.
        not_disaggregated: Turns that no prefill leg can serve, by why.
        tokens: Tokens by leg and kind (prompt, cached, output), where an answer told them.
        in_flight: Legs that run right now, by leg.
        first_byte: From sending a leg to its first byte, by leg and strategy.

    """

    turns: Counter
    legs: Counter
    retries: Counter
    without_params: Counter
    fixed_retentions: Counter
    not_disaggregated: Counter
    tokens: Counter
    in_flight: UpDownCounter
    first_byte: Histogram

    @classmethod
    def of(cls, telemetry: Telemetry) -> "Instruments":
        """Makes them."""
        return cls(
            turns=telemetry.counter("kvplane.turns", "Turns served"),
            legs=telemetry.counter("kvplane.legs", "Legs run"),
            retries=telemetry.counter("kvplane.leg.retries", "Legs run again elsewhere"),
            without_params=telemetry.counter(
                "kvplane.prefill.without_params", "Prefill answers that handed over no blocks"
            ),
            fixed_retentions=telemetry.counter(
                "kvplane.turns.fixed_retention", "Turns that stock engines keep"
            ),
            not_disaggregated=telemetry.counter(
                "kvplane.turns.not_disaggregated", "Turns that no prefill leg can serve"
            ),
            tokens=telemetry.counter("kvplane.tokens", "Tokens, as engines counted them"),
            in_flight=telemetry.gauge("kvplane.legs.in_flight", "Legs running"),
            first_byte=telemetry.seconds(
                "kvplane.leg.first_byte", "From sending a leg to its first byte"
            ),
        )
