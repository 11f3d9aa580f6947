//! The broker's errors as text, for logs.

use lapin::ErrorKind;

/// Returns the broker's own message, without what the library puts around it, and without the user of the URL.
pub fn broker_message(error: lapin::Error) -> String {
    without_user(match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    })
}

/// Leaves out the name in RabbitMQ's `refused for user 'name'`: a URL's credentials are never logged, and its user is
/// one.
fn without_user(message: String) -> String {
    let Some((before, rest)) = message.split_once("user '") else { return message };
    let after = rest.rsplit_once('\'').map_or("", |(_, after)| after);
    format!("{before}user '…'{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_does_not_show_the_user() {
        for (message, shown) in [
            ("access to vhost '/x' refused for user 'a'b'", "access to vhost '/x' refused for user '…'"),
            ("for user 'a' by its rights", "for user '…' by its rights"),
            ("no queue 'q' in vhost '/'", "no queue 'q' in vhost '/'"),
        ] {
            assert_eq!(without_user(message.into()), shown);
        }
    }
}
