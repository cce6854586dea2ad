//! What the `nodes:` dialect says, and the plans that come of it.
