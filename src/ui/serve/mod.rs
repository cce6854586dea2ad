//! A page for browsers: HTTP on threads, for whom there is room, who may look and act, and what
//! tells of changes. What is shown and done is the verbs' own, in `ui/cli/serve`.

pub mod access;
pub mod guests;
pub mod http;
pub mod live;
