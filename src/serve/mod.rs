//! Web server: HTTP on threads, connection limits, access control, and change notifications.
//! `ui/cli/serve` implements the pages and actions.

pub(crate) mod access;
pub(crate) mod connections;
pub(crate) mod follow;
pub(crate) mod http;
pub(crate) mod live;
pub(crate) mod pages;
pub(crate) mod routes;
