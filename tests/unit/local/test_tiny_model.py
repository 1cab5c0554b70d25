from kvplane_services.local import tiny_model


def test_every_token_is_one_character() -> None:
    """Each text is a different single character, so that any reply encodes back to its tokens."""
    texts = tiny_model.vocabulary()

    assert len(texts) == len(set(texts)) == tiny_model.CONFIG["vocab_size"]
    assert all(len(text) == 1 for text in texts)
    assert set(map(chr, range(32, 127))) | {"\n"} <= set(texts)


def test_only_the_end_of_a_turn_is_hidden() -> None:
    """One token is special; the unknown character's stand-in is an ordinary one."""
    content = tiny_model.tokenizer_json()

    assert [one["content"] for one in content["added_tokens"]] == [tiny_model.END_OF_TURN]
    assert content["model"]["vocab"][tiny_model.END_OF_TURN] == tiny_model.CONFIG["eos_token_id"]
    assert content["model"]["unk_token"] == "?"


def test_weights_fit_the_configuration() -> None:
    """Shapes follow the configuration, for every layer."""
    shapes = tiny_model.weight_shapes()

    assert shapes["lm_head.weight"] == (384, 256)
    assert shapes["model.layers.3.self_attn.k_proj.weight"] == (128, 256)
    assert len(shapes) == 3 + 11 * tiny_model.CONFIG["num_hidden_layers"]


def test_the_fingerprint_names_the_seed() -> None:
    """Another seed is another model."""
    assert tiny_model.fingerprint(1) == tiny_model.fingerprint(1) != tiny_model.fingerprint(2)
