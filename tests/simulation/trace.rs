//! The trace of a run: a line for each event, in the order of the events.

use std::cell::RefCell;
use std::fmt;

use crate::hosts::now;

thread_local! {
    static LINES: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Adds an event of the current moment.
pub fn record(event: fmt::Arguments<'_>) {
    use fmt::Write;
    LINES.with_borrow_mut(|lines| writeln!(lines, "{:>7} {event}", now()).unwrap());
}

/// Takes the lines of the calling thread.
pub fn take() -> String {
    LINES.take()
}
