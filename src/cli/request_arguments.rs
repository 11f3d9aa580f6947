//! The parts of a request, or of a response, on a command line.

use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::{CommandError, failed};

/// Parses a method. The registered ones in small letters are meant in capitals, as curl's users write them.
pub(super) fn parse_method(text: &str) -> Result<Method, String> {
    let is_small = !text.bytes().any(|byte| byte.is_ascii_uppercase());
    let written = if is_small { text.to_ascii_uppercase() } else { text.to_owned() };
    written.parse().map_err(|_| "is no method: write one like `POST`".into())
}

pub(super) fn parse_field(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("write it as `Name: value`")?;
    let name = name.trim().parse().map_err(|_| "is not a field name")?;
    Ok((name, value.trim().parse().map_err(|_| "is not a field value")?))
}

pub(super) fn parse_status(text: &str) -> Result<StatusCode, String> {
    let status = text.parse().ok().filter(|status| (200..600).contains(status));
    status.and_then(|status| StatusCode::from_u16(status).ok()).ok_or_else(|| "write a status from 200 to 599".into())
}

/// Returns the bytes of a body, or of the file behind an `@`.
pub(super) fn read_data(data: String) -> Result<Vec<u8>, CommandError> {
    match data.strip_prefix('@') {
        Some(file) => std::fs::read(file).map_err(|error| failed(format!("{file}: {error}"))),
        None => Ok(data.into_bytes()),
    }
}
