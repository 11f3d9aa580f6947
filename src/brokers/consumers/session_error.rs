//! The end of a consumer's session.

/// The reason why a session ended or did not begin.
pub(super) struct SessionError {
    pub(super) cause: String,
    /// Whether messages were being delivered.
    pub(super) was_consuming: bool,
}
