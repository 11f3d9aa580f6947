use hyper::Uri;
use hyper::http::uri::Authority;
use proptest::prelude::*;

use super::*;

const UPGRADE: FramedHead = FramedHead { body: BodyLength::Sized(0), upgrade: true };

fn parse(head: &[u8]) -> Result<HeadStep, FramingError> {
    HeadParser::new(false).advance(head)
}

/// The verdict on a request with these field lines behind a `Host`.
fn parse_fields(lines: &str) -> Result<BodyLength, FramingError> {
    let head = format!("POST /pay HTTP/1.1\r\nHost: h\r\n{lines}\r\n");
    match parse(head.as_bytes())? {
        HeadStep::Done(length, found) => {
            assert_eq!(length, head.len(), "{lines:?}");
            Ok(found.body)
        }
        step => panic!("{lines:?}: {step:?}"),
    }
}

fn parse_line(line: &str) -> Result<(), FramingError> {
    parse(format!("{line}\r\nHost: h\r\n\r\n").as_bytes()).map(|step| {
        assert!(matches!(step, HeadStep::Done(..)), "{line:?}: {step:?}");
    })
}

#[test]
fn framing_fields_say_where_the_body_ends() {
    use FramingError::*;
    let sized = |length| Ok(BodyLength::Sized(length));
    let table = [
        ("", sized(0)),
        ("Content-Length: 5\r\n", sized(5)),
        ("content-LENGTH:\t 0005 \t\r\n", sized(5)),
        ("Content-Length: 9223372036854775807\r\n", sized(i64::MAX as u64)),
        ("Content-Length: 9223372036854775808\r\n", Err(BadLength)),
        ("Content-Length: 18446744073709551616\r\n", Err(BadLength)),
        ("Content-Length:\r\n", Err(BadLength)),
        ("Content-Length: +5\r\n", Err(BadLength)),
        ("Content-Length: -5\r\n", Err(BadLength)),
        ("Content-Length: 0x5\r\n", Err(BadLength)),
        ("Content-Length: 5.0\r\n", Err(BadLength)),
        ("Content-Length: 5 5\r\n", Err(BadLength)),
        ("Content-Length: 5, 5\r\n", Err(BadLength)),
        ("Content-Length: 5\u{e9}\r\n", Err(BadLength)),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", Err(BadLength)),
        ("Content-Length: 5\r\ncontent-length: 6\r\n", Err(DifferingLengths)),
        ("Content-Length : 5\r\n", Err(BadHeader)),
        ("Content_Length: 5\r\n", Err(BadHeader)),
        ("Content.length: 5\r\n", Err(BadHeader)),
        ("Content-Lengths: x\r\n", sized(0)),
        ("Transfer-Encoding: chunked\r\n", Ok(BodyLength::Chunked)),
        ("transfer-encoding:\tCHUNKED \r\n", Ok(BodyLength::Chunked)),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", Err(BothLengths)),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", Err(BothLengths)),
        ("Content-Length: 5\r\nTransfer-Encoding: gzip\r\n", Err(BothLengths)),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", Err(ChunkedTwice)),
        ("Transfer-Encoding: chunked, chunked\r\n", Err(ChunkedTwice)),
        ("Transfer-Encoding: chunked, gzip, chunked\r\n", Err(ChunkedTwice)),
        ("Transfer-Encoding: chunked, gzip\r\n", Err(BadTransferEncoding)),
        ("Transfer-Encoding: chunked, identity\r\n", Err(BadTransferEncoding)),
        ("Transfer-Encoding: identity\r\n", Err(BadTransferEncoding)),
        ("Transfer-Encoding: identity, chunked\r\n", Err(BadTransferEncoding)),
        ("Transfer-Encoding:\r\n", Err(BadTransferEncoding)),
        ("Transfer-Encoding: ,chunked\r\n", Err(BadTransferEncoding)),
        ("Transfer-Encoding: chunked,\r\n", Err(BadTransferEncoding)),
        ("Transfer-Encoding: chunked;q=1\r\n", Err(BadTransferEncoding)),
        ("Transfer-Encoding: \"chunked\"\r\n", Err(BadTransferEncoding)),
        ("Transfer-Encoding: gzip chunked\r\n", Err(BadTransferEncoding)),
        ("Transfer-Encoding: chunked\u{b}\r\n", Err(BadHeader)),
        ("Transfer-Encoding: \u{b}chunked\r\n", Err(BadHeader)),
        ("Transfer-Encoding: chunked\u{a0}\r\n", Err(BadTransferEncoding)),
        ("Transfer-Encoding: gzip, chunked\r\n", Err(TransferCoding)),
        ("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", Err(TransferCoding)),
        ("Transfer-Encoding: gzip;level=9\r\n", Err(TransferCoding)),
        ("Transfer-Encoding: xchunked\r\n", Err(TransferCoding)),
        ("Transfer_Encoding: chunked\r\n", Err(BadHeader)),
        ("Transfer-Encoding : chunked\r\n", Err(BadHeader)),
        ("Transfer- Encoding: chunked\r\n", Err(BadHeader)),
        ("X-A: b\r\n Transfer-Encoding: chunked\r\n", Err(ObsFold)),
        ("Tran\u{17f}fer-Encoding: chunked\r\n", Err(BadHeader)),
    ];
    for (lines, verdict) in table {
        assert_eq!(parse_fields(lines), verdict, "{lines:?}");
    }
}

#[test]
fn field_lines_are_a_token_a_colon_and_text() {
    use FramingError::*;
    let table = [
        ("X-A: one\r\n", None),
        ("X-A:one\r\n", None),
        ("X-A:\r\n", None),
        ("X_A: under\r\n", None),
        ("!#$%&'*+-.^_`|~09aZ: x\r\n", None),
        ("X-A: tab\tin\tit\r\n", None),
        ("X-A: \u{e9}\r\n", None),
        ("X-A : one\r\n", Some(BadHeader)),
        ("X-A\t: one\r\n", Some(BadHeader)),
        ("X A: one\r\n", Some(BadHeader)),
        (": one\r\n", Some(BadHeader)),
        ("X-A\r\n", Some(BadHeader)),
        ("X-A: a\0b\r\n", Some(BadHeader)),
        ("X-A: a\x7fb\r\n", Some(BadHeader)),
        ("X-A: a\x1bb\r\n", Some(BadHeader)),
        ("X-A: a\rb\r\n", Some(BadHeader)),
        ("X-A: a\r\r\n", Some(BadHeader)),
        ("X-A\r: a\r\n", Some(BadHeader)),
        ("\0X-A: a\r\n", Some(BadHeader)),
        ("X-\u{e9}: a\r\n", Some(BadHeader)),
        ("(X): a\r\n", Some(BadHeader)),
        ("X-A: one\r\n two\r\n", Some(ObsFold)),
        ("X-A: one\r\n\ttwo\r\n", Some(ObsFold)),
        ("X-A: one\r\n \r\n", Some(ObsFold)),
        ("X-A: one\n", Some(BareLineFeed)),
        ("X-A: one\nX-B: two\r\n", Some(BareLineFeed)),
        ("\n", Some(BareLineFeed)),
    ];
    for (lines, refused) in table {
        assert_eq!(parse_fields(lines).err(), refused, "{lines:?}");
    }
    assert_eq!(parse(b"GET / HTTP/1.1\r\n Host: h\r\n\r\n"), Err(ObsFold), "in the place of the first field");
}

#[test]
fn request_lines_have_three_parts_and_two_spaces() {
    use FramingError::*;
    let table = [
        ("GET / HTTP/1.1", None),
        ("M-SEARCH /a?b=c&d[]=|{}^\\ HTTP/1.0", None),
        ("GET //a/../b%00 HTTP/1.1", None),
        ("POST http://other.example:81/x?y HTTP/1.1", None),
        ("POST HTTPS://other HTTP/1.1", None),
        ("POST http://[::1]?x HTTP/1.1", None),
        ("OPTIONS * HTTP/1.1", None),
        ("GET * HTTP/1.1", Some(BadRequestLine)),
        ("GET *x HTTP/1.1", Some(BadRequestLine)),
        ("GET h HTTP/1.1", Some(BadRequestLine)),
        ("GET h:80 HTTP/1.1", Some(BadRequestLine)),
        ("GET http:/x HTTP/1.1", Some(BadRequestLine)),
        ("GET http:///x HTTP/1.1", Some(BadRequestLine)),
        ("GET http://a@h/x HTTP/1.1", Some(BadRequestLine)),
        ("GET ftp://h/x HTTP/1.1", Some(BadRequestLine)),
        ("CONNECT h:443 HTTP/1.1", Some(BadRequestLine)),
        ("CONNECT / HTTP/1.1", Some(BadRequestLine)),
        ("get / HTTP/1.1", Some(BadRequestLine)),
        ("G\u{e9}T / HTTP/1.1", Some(BadRequestLine)),
        ("G(T / HTTP/1.1", Some(BadRequestLine)),
        (" / HTTP/1.1", Some(BadRequestLine)),
        ("GET  / HTTP/1.1", Some(BadRequestLine)),
        ("GET /  HTTP/1.1", Some(BadRequestLine)),
        (" GET / HTTP/1.1", Some(BadRequestLine)),
        ("GET / HTTP/1.1 ", Some(BadRequestLine)),
        ("GET\t/\tHTTP/1.1", Some(BadRequestLine)),
        ("GET /\tHTTP/1.1", Some(BadRequestLine)),
        ("GET /a b HTTP/1.1", Some(BadRequestLine)),
        ("GET /a\rb HTTP/1.1", Some(BadRequestLine)),
        ("GET /a\0 HTTP/1.1", Some(BadRequestLine)),
        ("GET /\u{e9} HTTP/1.1", Some(BadRequestLine)),
        ("GET /a#b HTTP/1.1", Some(BadRequestLine)),
        ("GET / HTTP/1.1 HTTP/1.1", Some(BadRequestLine)),
        ("GET /", Some(BadRequestLine)),
        ("GET / ", Some(BadRequestLine)),
        ("GET  HTTP/1.1", Some(BadRequestLine)),
        ("GET", Some(BadRequestLine)),
        ("GET / http/1.1", Some(BadRequestLine)),
        ("GET / HTTP/1.1\r", Some(BadRequestLine)),
        ("GET / HTTP/11", Some(BadRequestLine)),
        ("GET / HTTP/1.10", Some(BadRequestLine)),
        ("GET / HTTP/0.9", Some(Version)),
        ("GET / HTTP/1.2", Some(Version)),
        ("GET / HTTP/3.0", Some(Version)),
        ("PRI * HTTP/2.0", Some(Version)),
    ];
    for (line, refused) in table {
        assert_eq!(parse_line(line).err(), refused, "{line:?}");
    }
    assert_eq!(parse_line(&format!("{} / HTTP/1.1", "M".repeat(33))), Err(BadRequestLine));
}

#[test]
fn host_is_one_authority() {
    use FramingError::*;
    let table = [
        ("HTTP/1.1", "Host: h\r\n", None),
        ("HTTP/1.1", "Host: pay.example.com:8443\r\n", None),
        ("HTTP/1.1", "Host: pay_service.internal\r\n", None),
        ("HTTP/1.1", "Host: 127.0.0.1:80\r\n", None),
        ("HTTP/1.1", "Host: [::1]:8080\r\n", None),
        ("HTTP/1.1", "Host: [::ffff:1.2.3.4]\r\n", None),
        ("HTTP/1.1", "Host: h:\r\n", None),
        ("HTTP/1.0", "", Some(NoHost)),
        ("HTTP/1.1", "", Some(NoHost)),
        ("HTTP/1.1", "Host: h\r\nHost: h\r\n", Some(SeveralHosts)),
        ("HTTP/1.0", "Host: h\r\nhost: g\r\n", Some(SeveralHosts)),
        ("HTTP/1.1", "Host:\r\n", Some(BadHost)),
        ("HTTP/1.0", "Host:\r\n", Some(BadHost)),
        ("HTTP/1.1", "Host: a@h\r\n", Some(BadHost)),
        ("HTTP/1.1", "Host: h/x\r\n", Some(BadHost)),
        ("HTTP/1.1", "Host: h?x\r\n", Some(BadHost)),
        ("HTTP/1.1", "Host: h g\r\n", Some(BadHost)),
        ("HTTP/1.1", "Host: h, g\r\n", Some(BadHost)),
        ("HTTP/1.1", "Host: h,g\r\n", Some(BadHost)),
        ("HTTP/1.1", "Host: h:80:80\r\n", Some(BadHost)),
        ("HTTP/1.1", "Host: h:65536\r\n", Some(BadHost)),
        ("HTTP/1.1", "Host: h:+80\r\n", Some(BadHost)),
        ("HTTP/1.1", "Host: :80\r\n", Some(BadHost)),
        ("HTTP/1.1", "Host: [::1\r\n", Some(BadHost)),
        ("HTTP/1.1", "Host: [h]\r\n", Some(BadHost)),
        ("HTTP/1.1", "Host: [::1]x\r\n", Some(BadHost)),
        ("HTTP/1.1", "Host: ::1\r\n", Some(BadHost)),
        ("HTTP/1.1", "Host: h%41\r\n", Some(BadHost)),
        ("HTTP/1.1", "Host: \u{e9}\r\n", Some(BadHost)),
        ("HTTP/1.1", "Host : h\r\n", Some(BadHeader)),
    ];
    for (version, lines, refused) in table {
        let head = format!("GET / {version}\r\n{lines}\r\n");
        assert_eq!(parse(head.as_bytes()).err(), refused, "{version} {lines:?}");
    }
}

#[test]
fn http_1_0_has_no_transfer_encoding_and_no_upgrade() {
    let head = b"POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(parse(head), Err(FramingError::TransferEncodingInHttp10));
    let head = b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: x\r\n\r\n";
    assert_eq!(parse(head), Ok(HeadStep::Done(head.len(), UPGRADE)));
    let head = b"GET / HTTP/1.0\r\nHost: h\r\nUpgrade: x\r\n\r\n";
    assert_eq!(parse(head), Ok(HeadStep::Done(head.len(), FramedHead { upgrade: false, ..UPGRADE })));
}

#[test]
fn sizes_are_bounded() {
    use FramingError::*;
    let fields = |count: usize| "X: y\r\n".repeat(count);
    assert_eq!(parse_fields(&fields(FIELDS_MAX - 1)), Ok(BodyLength::Sized(0)));
    assert_eq!(parse_fields(&fields(FIELDS_MAX)), Err(TooManyFields));

    let target = |length: usize| parse_line(&format!("GET /{} HTTP/1.1", "a".repeat(length - 1)));
    assert_eq!(target(TARGET_BYTES_MAX), Ok(()));
    assert_eq!(target(TARGET_BYTES_MAX + 1), Err(TargetTooLong));
    assert_eq!(target(70_000), Err(TargetTooLong));
    let endless = [b"GET /", &[b'a'; REQUEST_LINE_BYTES_MAX][..]].concat();
    assert_eq!(parse(&endless), Err(TargetTooLong), "without the end of the line in sight");

    let around = b"GET / HTTP/1.1\r\nHost: h\r\nX: \r\n\r\n".len();
    let large = |length: usize| format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "a".repeat(length - around));
    assert!(matches!(parse(large(HEAD_BYTES_MAX).as_bytes()), Ok(HeadStep::Done(HEAD_BYTES_MAX, _))));
    assert_eq!(parse(large(HEAD_BYTES_MAX + 1).as_bytes()), Err(HeadTooLarge));
    assert_eq!(parse(&large(HEAD_BYTES_MAX + 9).as_bytes()[..HEAD_BYTES_MAX]), Err(HeadTooLarge));
}

#[test]
fn two_empty_lines_may_come_before_a_head() {
    let mut parser = HeadParser::new(true);
    assert_eq!(parser.advance(b"\r\n\r\nGET"), Ok(HeadStep::Blank(2)));
    assert_eq!(parser.advance(b"\r"), Ok(HeadStep::More));
    assert_eq!(parser.advance(b"\r\nGET"), Ok(HeadStep::Blank(2)));
    let head = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    assert!(matches!(parser.advance(head), Ok(HeadStep::Done(length, _)) if length == head.len()));

    let mut parser = HeadParser::new(true);
    assert_eq!(parser.advance(b"\r\n"), Ok(HeadStep::Blank(2)));
    assert_eq!(parser.advance(b"\r\n"), Ok(HeadStep::Blank(2)));
    assert_eq!(parser.advance(b"\r\n"), Err(FramingError::BadRequestLine));
}

#[test]
fn the_preface_of_http_2_counts_at_the_start_of_a_connection_only() {
    let mut parser = HeadParser::new(true);
    for end in 0..PREFACE.len() {
        assert_eq!(parser.advance(&PREFACE[..end]), Ok(HeadStep::More));
    }
    assert_eq!(parser.advance(PREFACE), Ok(HeadStep::Preface));
    assert_eq!(HeadParser::new(false).advance(PREFACE), Err(FramingError::Version));
    assert_eq!(HeadParser::new(true).advance(b"PRI * HTTP/2.0\r\n\r\nGET /"), Err(FramingError::Version));
    let mut parser = HeadParser::new(true);
    assert_eq!(parser.advance(b"\r\n"), Ok(HeadStep::Blank(2)));
    assert_eq!(parser.advance(PREFACE), Err(FramingError::Version));
}

#[test]
fn bytes_that_are_not_http_are_refused_at_the_first_one() {
    assert_eq!(parse(b"\x16"), Err(FramingError::BadRequestLine), "TLS");
    assert_eq!(parse(b" "), Err(FramingError::BadRequestLine));
    assert_eq!(parse(b"\n"), Err(FramingError::BareLineFeed));
    assert_eq!(parse(b"\rG\r\n"), Err(FramingError::BadRequestLine));
    assert_eq!(parse(b"G"), Ok(HeadStep::More));
}

#[test]
fn a_head_ends_at_its_empty_line_however_it_arrives() {
    let bytes = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabcGET";
    let end = bytes.len() - "abcGET".len();
    let mut parser = HeadParser::new(true);
    for length in 1..end {
        assert_eq!(parser.advance(&bytes[..length]), Ok(HeadStep::More), "{length}");
    }
    let whole = HeadStep::Done(end, FramedHead { body: BodyLength::Sized(3), upgrade: false });
    assert_eq!(parser.advance(bytes), Ok(whole));
}

#[test]
fn http_accepts_every_accepted_head() {
    for byte in 0..=u8::MAX {
        for around in [&b"/a?b"[..], b"/?a", b"http://h/a?b"] {
            for at in 1..=around.len() {
                let target = [&around[..at], &[byte], &around[at..]].concat();
                let taken = Uri::try_from(&target[..]).is_ok();
                assert!(taken || !is_target(b"GET", &target), "{}", target.escape_ascii());
            }
        }
        for around in [&b"h"[..], b"h:80", b"[::1]"] {
            for at in 0..=around.len() {
                let host = [&around[..at], &[byte], &around[at..]].concat();
                let taken = Authority::try_from(&host[..]).is_ok();
                assert!(taken || !is_authority(&host), "{}", host.escape_ascii());
            }
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic_and_splitting_changes_nothing(
        bytes in prop::collection::vec(prop_oneof![
            Just(b"GET / HTTP/1.1\r\n".to_vec()), Just(b"Host: h\r\n".to_vec()), Just(b"\r\n".to_vec()),
            Just(b"Content-Length: 1\r\n".to_vec()), prop::collection::vec(any::<u8>(), 0..4),
        ], 0..8).prop_map(|parts| parts.concat()),
        cut in any::<prop::sample::Index>(),
    ) {
        let whole = HeadParser::new(true).advance(&bytes);
        let mut parser = HeadParser::new(true);
        let first = parser.advance(&bytes[..cut.index(bytes.len() + 1)]);
        let split = if first == Ok(HeadStep::More) { parser.advance(&bytes) } else { first };
        // A head that is wrong in two ways is refused for the one that the parser finds first.
        prop_assert_eq!(split.is_ok(), whole.is_ok());
        if whole.is_ok() {
            prop_assert_eq!(split, whole);
        }
    }
}
