"""What the demo's client says: a system prompt and five questions, all of it plain ASCII."""

MODEL = "kvplane-tiny"

# One character is one token of the demo's model: this is as long as a small agent's instructions.
SYSTEM = 4 * (
    "You are the release assistant of a storage team. You read build logs, find the first failure, "
    "say which change caused it and what to do next. You answer in one paragraph, name files and "
    "line numbers, and never guess: if a log does not show the cause, ask for the log that would. "
)

QUESTIONS = (
    (
        "The nightly build of the block service failed in the replication test. Here is the tail "
        "of its log: replica 3 lagged 41 entries behind, then the leader stepped down. Where do I "
        "look first?"
    ),
    (
        "I looked: the leader stepped down because a heartbeat was 900 ms late. The host was busy "
        "with a compaction that started two seconds before. Is that the cause or a symptom?"
    ),
    (
        "Compaction is limited to two threads there. The change that went in yesterday moved "
        "checksums into the same pool. Show me how to prove that it is the checksums."
    ),
    (
        "Done. With checksums outside the pool the lag stays under 5 entries for an hour. Should "
        "the fix be a larger pool, a second pool, or a priority?"
    ),
    "We take the second pool. Write the commit message and the line for the changelog.",
)
