//! What the chapters share.

pub mod link;
pub mod postgres;
pub mod world;
