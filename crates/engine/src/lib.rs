//! The engine: the way of a request, the state of this process that all requests share, and the background tasks.
//!
//! Each module uses only the modules to its right: `tasks → gate → instance`, which `tests/tidy.rs` holds.

pub mod gate;
pub mod instance;
pub mod tasks;
