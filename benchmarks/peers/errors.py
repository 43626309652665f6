"""What can go wrong with a peer."""


class PeerError(RuntimeError):
    """A peer can't be installed, built or started. The message is one sentence: what failed, and what to do next."""
