//! Web server: HTTP on threads, connection limits, access control, and change notifications.
//! `ui/cli/serve` implements the pages and actions.

pub mod access;
pub mod connections;
pub(crate) mod follow;
pub mod http;
pub mod live;
pub mod pages;
pub(crate) mod routes;
