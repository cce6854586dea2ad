//! Pages: what there is to see, as HTML that needs no script. The style sheet and the few lines of
//! script are files beside this one, built in.

pub mod html;
pub mod parts;
pub mod report;
pub mod served;
