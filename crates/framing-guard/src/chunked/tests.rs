use proptest::prelude::*;

use super::*;

fn advance(body: &str) -> ChunkedStep {
    ChunkedParser::new().advance(body.as_bytes())
}

#[test]
fn valid_bodies_end_at_their_last_byte() {
    let table = [
        "0\r\n\r\n",
        "00000\r\n\r\n",
        "2\r\nhi\r\n0\r\n\r\n",
        "A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n",
        "000000000000002\r\nhi\r\n0\r\n\r\n",
        "2;foo=bar\r\nhi\r\n0;last\r\n\r\n",
        "2 \t; a=\"b c\"; d\r\nhi\r\n0\r\n\r\n",
        "2;\u{e9}\r\nhi\r\n0\r\n\r\n",
        "2\r\n\r\n\r\n0\r\n\r\n",
        "2\r\nhi\r\n0\r\nX-T: v\r\nContent-Length: 9\r\n\r\n",
        "0\r\nX-T:\r\n\r\n",
    ];
    for body in table {
        let more = format!("{body}0\r\n\r\nGET / HTTP/1.1\r\n");
        assert_eq!(advance(&more), ChunkedStep::Done(body.len()), "{body:?}");
        for end in 0..body.len() {
            assert_eq!(
                ChunkedParser::new().advance(&body.as_bytes()[..end]),
                ChunkedStep::More,
                "{body:?} up to {end}"
            );
        }
    }
}

#[test]
fn the_first_wrong_byte_is_reported() {
    let table = [
        ("\r\n", 0),
        (" 2\r\nhi", 0),
        (";a\r\n", 0),
        ("x\r\n", 0),
        ("0x2\r\nhi", 1),
        ("+2\r\nhi", 0),
        ("-2\r\nhi", 0),
        ("2_0\r\n", 1),
        ("2\nhi\n0\n\n", 1),
        ("2\rhi", 2),
        ("2 \r\nhi", 2),
        ("2 3\r\nhi", 2),
        ("2;a\nhi", 3),
        ("2;a\rb\r\nhi", 4),
        ("2;a\0\r\nhi", 3),
        ("2;a\x7f\r\nhi", 3),
        ("fffffffffffffffff\r\n", 15),
        ("0000000000000002\r\nhi", 15),
        ("2\r\nhi!\r\n", 5),
        ("2\r\nhi\n0\r\n\r\n", 5),
        ("2\r\nhi\r0\r\n\r\n", 6),
        ("2\r\nhi0\r\n\r\n", 5),
        ("0\r\n\n", 3),
        ("0\r\n\rx", 4),
        ("0\r\n X: y\r\n\r\n", 3),
        ("0\r\nX : y\r\n\r\n", 4),
        ("0\r\n: y\r\n\r\n", 3),
        ("0\r\nX\r\n\r\n", 4),
        ("0\r\nX: y\n\r\n", 7),
        ("0\r\nX: a\rb\r\n\r\n", 8),
        ("0\r\nX: a\0\r\n\r\n", 7),
        ("0\r\nX: a\r\n b\r\n\r\n", 9),
    ];
    for (body, valid) in table {
        assert_eq!(advance(body), ChunkedStep::Bad(valid), "{body:?}");
    }
}

#[test]
fn extensions_and_trailers_are_bounded() {
    let is_done = |body: &str| matches!(advance(body), ChunkedStep::Done(length) if length == body.len());
    // The semicolon counts.
    let line = |bytes: usize| format!("1;{}\r\nx\r\n", "e".repeat(bytes - 1));
    let end = "0\r\n\r\n";
    assert!(is_done(&format!("{}{end}", line(256))));
    assert!(!is_done(&format!("{}{end}", line(257))));
    assert!(is_done(&format!("{}{end}", line(256).repeat(16))));
    assert!(!is_done(&format!("{}{}{end}", line(256).repeat(16), line(1))));

    let trailers = |count: usize| format!("0\r\n{}\r\n", "X: y\r\n".repeat(count));
    assert!(is_done(&trailers(32)));
    assert!(!is_done(&trailers(33)));
    let trailer = |bytes: usize| format!("0\r\nX: {}\r\n\r\n", "y".repeat(bytes - "X: \r\n".len()));
    assert!(is_done(&trailer(8 * 1024)));
    assert!(!is_done(&trailer(8 * 1024 + 1)));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic_and_splitting_changes_nothing(
        bytes in prop::collection::vec(prop_oneof![
            Just(b"3\r\nabc\r\n".to_vec()), Just(b"0\r\n".to_vec()), Just(b"\r\n".to_vec()), Just(b"X: y\r\n".to_vec()),
            Just(b"1;e\r\n".to_vec()), prop::collection::vec(any::<u8>(), 0..3),
        ], 0..8).prop_map(|parts| parts.concat()),
        cut in any::<prop::sample::Index>(),
    ) {
        let cut = cut.index(bytes.len() + 1);
        let mut chunked = ChunkedParser::new();
        let split = match chunked.advance(&bytes[..cut]) {
            ChunkedStep::More => match chunked.advance(&bytes[cut..]) {
                ChunkedStep::Bad(valid) => ChunkedStep::Bad(cut + valid),
                ChunkedStep::Done(length) => ChunkedStep::Done(cut + length),
                ChunkedStep::More => ChunkedStep::More,
            },
            early => early,
        };
        prop_assert_eq!(split, ChunkedParser::new().advance(&bytes));
    }
}
