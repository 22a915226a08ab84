"""The bench feature: a command."""

from server.feature import Command, Feature

BENCH = Feature(name="bench", commands={"bench": Command(function="server.features.bench.command:bench")})
