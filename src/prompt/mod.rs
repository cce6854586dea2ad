//! What to say to a provider: the author's text, with the files it depends on.

pub mod inject;
