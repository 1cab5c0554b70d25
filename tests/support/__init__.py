"""What tests of all kinds share: a clock that can wait for sleepers, and builders of values."""
