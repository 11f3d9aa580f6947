//! The broker's errors as text, for logs.

use lapin::ErrorKind;

/// Returns the broker's own message, without what the library puts around it.
pub(super) fn broker_message(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    }
}
