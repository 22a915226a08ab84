"""Uvicorn's flow control of a connection, with one more reason to stop reading."""

from uvicorn.protocols.http.flow_control import FlowControl


class Flow(FlowControl):
    """Reading also stays paused while it is held, whoever resumes it: then enough has come that can't be parsed yet."""

    is_held = False

    def hold(self) -> None:
        """Stop reading."""
        self.is_held = True
        self.pause_reading()

    def release(self) -> None:
        """Read on."""
        self.is_held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        """As uvicorn asks for it, unless it is held."""
        if self.read_paused and not self.is_held:
            super().resume_reading()
