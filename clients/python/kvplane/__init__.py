"""kvplane: KV-cache reuse across the turns of a conversation, for disaggregated vLLM.

`kvplane.api` holds the generated contracts, `kvplane.client` the client for them,
`kvplane.transfer_params` and `kvplane.digest` what travels with a request.
"""
