"""Tests on real engines that the connector runs in; the package's tests share one pair."""
