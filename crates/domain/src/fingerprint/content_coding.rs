//! Content codings (RFC 9110, section 8.4.1): the content of a body that was sent encoded.
//!
//! The same content has many encodings: a gzip header has a time, and each compressor has its own choices. So a client
//! that compresses for each try sends other bytes for the same request. What is encoded is compared by its content.

use std::io::Read;

use flate2::bufread::GzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

/// The largest content, in bytes: four times the largest body of a route by default. A worker decodes one body at a
/// time, so this bounds what it holds besides the bodies that are counted.
pub const CONTENT_MAX: usize = 4 * 1024 * 1024;

/// The largest content, in multiples of the body. JSON becomes 5 to 20 times smaller and repetitive lists 50 times; a
/// body that is made to unpack to an enormous one becomes 1,000 times smaller.
const RATIO_MAX: usize = 100;

/// Clients use one coding. Each further one multiplies the work.
const CODINGS_MAX: usize = 2;

/// Decodes a body to a content of at most so many bytes.
type Decoder = fn(&[u8], usize) -> Option<Vec<u8>>;

pub fn content_limit(body_size: usize) -> usize {
    body_size.saturating_mul(RATIO_MAX).min(CONTENT_MAX)
}

/// Whether a request names a coding other than `identity`.
pub fn is_encoded(headers: &HeaderMap) -> bool {
    headers.contains_key(CONTENT_ENCODING) && names(headers).next().is_some()
}

/// The names of the codings in the order in which they were applied, in lower case and without `identity`.
pub(super) fn names(headers: &HeaderMap) -> impl Iterator<Item = Vec<u8>> {
    let lists = headers.get_all(CONTENT_ENCODING).iter();
    let names = lists.flat_map(|list| list.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    names.map(<[u8]>::to_ascii_lowercase).filter(|name| !matches!(name.as_slice(), b"" | b"identity"))
}

/// The content of an encoded body. `None` if a coding is unknown, if there are too many, if the body is not exactly
/// what its codings demand, or if the content is too large: it is then compared by its bytes.
pub(super) fn decode(headers: &HeaderMap, body: &[u8]) -> Option<Vec<u8>> {
    let find = |name: Vec<u8>| match name.as_slice() {
        b"deflate" => Some(decode_zlib as Decoder),
        b"gzip" | b"x-gzip" => Some(decode_gzip as Decoder),
        _ => None,
    };
    let codings: Vec<Decoder> = names(headers).take(CODINGS_MAX + 1).map(find).collect::<Option<_>>()?;
    if codings.len() > CODINGS_MAX {
        return None;
    }
    let limit = content_limit(body.len());
    let mut codings = codings.into_iter().rev();
    let outer = codings.next()?(body, limit)?;
    codings.try_fold(outer, |body, decode| decode(&body, limit))
}

/// The format of RFC 1952, one member and nothing behind it: some services read the first member alone, and others all.
fn decode_gzip(body: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut decoder = GzDecoder::new(body);
    let mut content = Vec::new();
    decoder.by_ref().take(limit as u64 + 1).read_to_end(&mut content).ok()?;
    (content.len() <= limit && decoder.get_ref().is_empty()).then_some(content)
}

/// The zlib format (RFC 1950), and the stream to its end: the reader of `flate2` takes a stream that breaks off for a
/// whole one. The bare DEFLATE data that some clients send is not decoded.
fn decode_zlib(body: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut stream = Decompress::new(true);
    let mut content = Vec::new();
    let read = |stream: &Decompress| usize::try_from(stream.total_in()).unwrap_or(usize::MAX);
    loop {
        if content.len() > limit {
            return None;
        }
        content.reserve(content.len().max(1024));
        let (read_before, length_before) = (read(&stream), content.len());
        match stream.decompress_vec(body.get(read_before..)?, &mut content, FlushDecompress::None).ok()? {
            Status::StreamEnd => break,
            Status::Ok | Status::BufError if (read(&stream), content.len()) == (read_before, length_before) => {
                return None;
            }
            Status::Ok | Status::BufError => {}
        }
    }
    (content.len() <= limit && read(&stream) == body.len()).then_some(content)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::write::{DeflateEncoder, ZlibEncoder};
    use flate2::{Compression, GzBuilder};
    use http::HeaderValue;

    use super::*;

    fn encoded_by(lines: &[&'static str]) -> HeaderMap {
        lines.iter().map(|line| (CONTENT_ENCODING, HeaderValue::from_static(line))).collect()
    }

    fn gzip(content: &[u8], mtime: u32, level: u32) -> Vec<u8> {
        let mut encoder = GzBuilder::new().mtime(mtime).write(Vec::new(), Compression::new(level));
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(content: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    fn bare_deflate(content: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    const CONTENT: &[u8] = br#"{"amount":10,"to":"x","note":"the same, the same, the same"}"#;

    #[test]
    fn a_body_is_decoded_by_its_codings_from_the_last_to_the_first() {
        let (plain, packed) = (gzip(CONTENT, 1, 6), zlib(CONTENT));
        for (lines, body) in [
            (&["gzip"][..], &plain),
            (&["X-GZip"], &gzip(CONTENT, 2, 1)),
            (&["identity, gzip"], &gzip(CONTENT, 0, 9)),
            (&["deflate"], &packed),
            (&["gzip, deflate"], &zlib(&plain)),
            (&["gzip", " deflate "], &zlib(&plain)),
            (&["gzip , identity", "", "gzip"], &gzip(&plain, 3, 6)),
        ] {
            assert_eq!(decode(&encoded_by(lines), body).as_deref(), Some(CONTENT), "{lines:?}");
        }
        assert_eq!(decode(&encoded_by(&["gzip"]), &gzip(b"", 0, 6)).as_deref(), Some(&b""[..]));
        assert_eq!(decode(&encoded_by(&["deflate"]), &zlib(b"")).as_deref(), Some(&b""[..]));
    }

    #[test]
    fn a_body_that_services_may_read_in_different_ways_is_not_decoded() {
        let (one, packed) = (gzip(CONTENT, 1, 6), zlib(CONTENT));
        let with_last = |body: &[u8], bits: u8| {
            let mut body = body.to_vec();
            *body.last_mut().unwrap() ^= bits;
            body
        };
        for (lines, body) in [
            (&["br"][..], one.clone()),
            (&["gzip, br"], one.clone()),
            (&["gzip, gzip, gzip"], gzip(&gzip(&one, 1, 6), 1, 6)),
            (&["gzip"], CONTENT.to_vec()),
            (&["gzip"], Vec::new()),
            (&["gzip"], packed.clone()),
            (&["gzip"], [&one[..], &one].concat()),
            (&["gzip"], [&one[..], b"\0"].concat()),
            (&["gzip"], one[..one.len() - 1].to_vec()),
            (&["gzip"], with_last(&one, 1)),
            (&["deflate"], bare_deflate(CONTENT)),
            (&["deflate"], Vec::new()),
            (&["deflate"], one.clone()),
            (&["deflate"], [&packed[..], b"\0"].concat()),
            (&["deflate"], packed[..packed.len() - 1].to_vec()),
            (&["deflate"], packed[..packed.len() / 2].to_vec()),
            (&["deflate"], with_last(&packed, 1)),
        ] {
            assert_eq!(decode(&encoded_by(lines), &body), None, "{lines:?} {body:?}");
        }
        assert_eq!(decode(&HeaderMap::new(), CONTENT), None);
    }

    #[test]
    fn a_content_that_is_too_large_for_its_body_is_not_decoded() {
        // Random enough to stay within the ratio.
        let mixed: Vec<u8> = (0..CONTENT_MAX as u32 + 1).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for coding in ["gzip", "deflate"] {
            let pack = |content: &[u8]| if coding == "gzip" { gzip(content, 0, 1) } else { zlib(content) };
            let is_decoded = |body: &[u8]| decode(&encoded_by(&[coding]), body).is_some();
            assert!(is_decoded(&pack(&mixed[..CONTENT_MAX])), "{coding}");
            assert!(!is_decoded(&pack(&mixed)), "{coding}");
            let zeros = pack(&vec![0; 1 << 20]);
            assert!(content_limit(zeros.len()) < 1 << 20);
            assert!(!is_decoded(&zeros), "{coding}");
            // Twice packed, the ratio is that of both.
            let twice = pack(&pack(&vec![0; 1 << 20]));
            assert_eq!(decode(&encoded_by(&[coding, coding]), &twice), None, "{coding}");
        }
        assert_eq!(content_limit(usize::MAX), CONTENT_MAX);
        assert_eq!(content_limit(10), 1000);
    }

    #[test]
    fn identity_is_no_coding() {
        for lines in [&[][..], &["identity"], &["", "Identity ,"]] {
            assert!(!is_encoded(&encoded_by(lines)), "{lines:?}");
        }
        for lines in [&["gzip"][..], &["identity", "br"]] {
            assert!(is_encoded(&encoded_by(lines)), "{lines:?}");
        }
    }
}
