"""A deployment per test: tests kill parts of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.e2e.stage import Conversation, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    try:
        stage.start()
        yield stage
    finally:
        stage.stop()


@pytest.fixture
def client(stage: Stage) -> Iterator[OpenAI]:
    with stage.client() as client:
        yield client


@pytest.fixture
def chat(stage: Stage, client: OpenAI) -> Conversation:
    return Conversation(stage, client, strategy="pull")
