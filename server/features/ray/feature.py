"""The Ray feature: commands."""

from server.feature import Feature, Group

RAY = Feature(
    name="ray",
    commands={
        "ray": Group(
            help="Whole servers on a Ray cluster.",
            functions={
                "serve": "server.features.ray.command:serve",
                "manifest": "server.features.ray.command:manifest",
            },
        )
    },
)
