//! Requests and decisions of operators, over the admin listener and from a shell.

mod causes;
mod decisions;
mod people;
mod queries;
mod report;
mod risks;
mod shell;

use harness::operator::{dead, unknown};
