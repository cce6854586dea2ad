//! HTML pages that work without scripts. The style sheet and the short scripts are files in this
//! directory, compiled into the program.

pub mod html;
pub mod parts;
