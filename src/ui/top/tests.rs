//! Screens, compared whole.
