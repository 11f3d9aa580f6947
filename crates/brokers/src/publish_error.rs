//! The reason why a broker, or the place that events go to, has not taken a message.

/// A message that is not known to be published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The receiver is away, takes nothing at the moment, or has not confirmed the message in time. It may have it: a
    /// message that is published again may be there twice.
    #[error("{0}")]
    Away(String),
    /// The receiver refuses this message, and will refuse it again.
    #[error("{0}")]
    Refused(String),
}
