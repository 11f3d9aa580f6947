//! Tables of bodies: the same whatever their boundaries, and not the same.

use super::*;

fn body(boundary: &str, parts: &[&str]) -> String {
    let parts: String = parts.iter().map(|part| format!("--{boundary}\r\n{part}\r\n")).collect();
    format!("{parts}--{boundary}--\r\n")
}

fn of(content_type: &str, body: &str) -> Option<Vec<BodyPart>> {
    parts(content_type.as_bytes(), body.as_bytes(), PlaceSelection { include: &[], exclude: &[] })
}

/// A batch as OData has it: a changeset with a request, and a request.
fn batch(outer: &str, inner: &str, [amount, kind, fields, query]: [&str; 4]) -> String {
    let request = format!(
        "Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\nPOST /pay HTTP/1.1\r\n\r\n{amount}"
    );
    let changeset = body(inner, &[&request]);
    let changeset = format!("Content-Type: {kind};boundary={inner}\r\n{fields}\r\n{changeset}");
    body(outer, &[&changeset, &format!("Content-Type: application/http\r\n\r\nGET /{query} HTTP/1.1\r\n\r\n")])
}

const BATCH: [&str; 4] = ["1", "multipart/mixed", "", "a"];
const A: &str = "Content-Disposition: form-data; name=\"a\"\r\n\r\n1";

#[test]
fn a_body_is_the_same_whatever_its_boundaries() {
    for (one, other) in [
        (
            ("multipart/form-data; boundary=one", body("one", &[A])),
            ("Multipart/Form-Data;boundary=\"another\"", body("another", &[A])),
        ),
        (
            ("multipart/mixed; boundary=batch_1", batch("batch_1", "changeset_1", BATCH)),
            ("multipart/mixed; boundary=batch_22", batch("batch_22", "changeset_22", BATCH)),
        ),
        (
            (
                "multipart/related; boundary=b; type=\"application/xop+xml\"; start=\"<a>\"",
                body("b", &["Content-ID: <a>\r\n\r\n<x/>"]),
            ),
            (
                "multipart/related; start=\"<a>\"; TYPE=application/xop+xml; boundary=cc",
                body("cc", &["Content-ID: <a>\r\n\r\n<x/>"]),
            ),
        ),
        (
            ("multipart/mixed; boundary=b", body("b", &["\r\nno fields", "\r\n"])),
            ("multipart/mixed; boundary=c", body("c", &["\r\nno fields", "\r\n"])),
        ),
        (
            ("multipart/mixed; boundary=b", body("b", &["X: \u{1}\0\n\r\n\r\n\n--x"])),
            ("multipart/mixed; boundary=c", body("c", &["X: \u{1}\0\n\r\n\r\n\n--x"])),
        ),
    ] {
        let (first, second) = (of(one.0, &one.1), of(other.0, &other.1));
        assert!(first.is_some(), "{}", one.1);
        assert_eq!(first, second, "{}", one.1);
    }
}

#[test]
fn fields_of_a_form_count_whatever_their_order_and_other_parts_do_not() {
    const B: &str = "Content-Disposition: form-data; name=\"b\"; filename=\"f\"\r\n\r\n2";
    let form = |boundary: &str, parts: &[&str]| {
        of(&format!("multipart/form-data; boundary={boundary}"), &body(boundary, parts))
    };
    assert_eq!(form("x", &[A, B]), form("y", &[B, A]));
    let places: Vec<_> = form("x", &[B, A]).unwrap().into_iter().map(|part| part.place).collect();
    assert_eq!(places, ["multipart", "form:a", "form:b"]);
    let mixed = |parts: &[&str]| of("multipart/mixed; boundary=x", &body("x", parts));
    assert_ne!(mixed(&[A, B]), mixed(&[B, A]));
    let places: Vec<_> = mixed(&[B, A]).unwrap().into_iter().map(|part| part.place).collect();
    assert_eq!(places, ["multipart", "part 1", "part 2"]);
    // Nobody can tell the name of the second part, so that the order counts.
    const C: &str = "Content-Disposition: form-data; name*=utf-8''c\r\n\r\n3";
    assert_ne!(form("x", &[A, C]), form("x", &[C, A]));
    // Rack makes elements of a list of the first and the second name.
    let [item, gift, other] = ["i[][p]", "i[][q]", "j"].map(|name| A.replace("\"a\"", &format!("\"{name}\"")));
    assert_eq!(form("x", &[&item, &other, &gift]), form("x", &[&other, &item, &gift]));
    assert_ne!(form("x", &[&item, &item, &gift]), form("x", &[&item, &gift, &item]));
    // A list of files (RFC 2388), in a multipart part.
    let files = |boundary: &str| {
        let head =
            format!("Content-Disposition: form-data; name=f\r\nContent-Type: multipart/mixed; boundary={boundary}");
        format!("{head}\r\n\r\n{}", body(boundary, &[A]))
    };
    assert_eq!(form("x", &[&files("i"), A]), form("y", &[A, &files("j")]));
}

#[test]
fn only_fields_that_are_selected_count() {
    let place = |text: &str| match crate::place::Place::parse(text) {
        Ok(crate::place::Place::Form(name, pointer)) => (name, pointer),
        other => panic!("{text}: {other:?}"),
    };
    let request = |head: &str, key: &str, amount: &str| {
        let json = format!("{{\"key\": \"{key}\", \"amount\": {amount}}}");
        let request = format!("Content-Disposition: form-data; name=request\r\n{head}\r\n{json}");
        body("b", &[&request, A])
    };
    let of = |include: &[&str], exclude: &[&str], body: &str| {
        let [include, exclude] = [include, exclude].map(|list| list.iter().map(|text| place(text)).collect::<Vec<_>>());
        let selection = PlaceSelection { include: &include, exclude: &exclude };
        parts(b"multipart/form-data; boundary=b", body.as_bytes(), selection).unwrap()
    };
    let base = request("", "k", "1");
    for (include, exclude, other, is_same) in [
        (&[][..], &["form:request#/key"][..], request("", "l", "1.0"), true),
        (&[], &["form:request#/key"], request("", "l", "2"), false),
        (&[], &["form:request#/key"], request("X: 1\r\n", "l", "1"), false),
        (&[], &["form:request#/key"], request("", "l", "x"), false),
        (&[], &[], request("", "l", "1"), false),
        (&[], &["form:request"], request("X: 1\r\n", "l", "2"), true),
        (&["form:request#/amount"], &[], request("", "l", "1"), true),
        (&["form:request#/amount"], &[], request("", "k", "2"), false),
        (&["form:request#/amount"], &[], request("", "k", "1").replace("\"a\"\r\n\r\n1", "\"a\"\r\n\r\n2"), true),
        (&["form:a"], &[], request("", "l", "2"), true),
        (&["form:a"], &[], request("", "k", "1").replace("\"a\"\r\n\r\n1", "\"a\"\r\n\r\n2"), false),
    ] {
        assert_eq!(
            of(include, exclude, &base) == of(include, exclude, &other),
            is_same,
            "{include:?} {exclude:?} {other}"
        );
    }
}

#[test]
fn an_empty_preamble_is_a_part_of_a_plainly_written_body() {
    let with_preamble = |boundary: &str| format!("\r\n{}", body(boundary, &[A]));
    let typed = |boundary: &str| format!("multipart/mixed; boundary={boundary}");
    let [one, other] = ["i", "j"].map(|boundary| of(&typed(boundary), &with_preamble(boundary)));
    assert!(one.is_some() && one == other);
    assert_ne!(one, of(&typed("i"), &body("i", &[A])));
}

#[test]
fn bodies_that_differ_in_more_than_boundaries_differ() {
    let form = |parts: &[&str]| of("multipart/form-data; boundary=b", &body("b", parts));
    let mixed = |parts: &[&str]| of("multipart/mixed; boundary=b", &body("b", parts));
    let related = |parameters: &str| of(&format!("multipart/related; boundary=b{parameters}"), &body("b", &[A]));
    let batch = |parts| of("multipart/mixed; boundary=o", &batch("o", "i", parts));
    let nested = body("i", &[A]);
    let nested = |inner: &str| mixed(&[&format!("Content-Type: multipart/mixed; boundary={inner}\r\n\r\n{nested}")]);
    let all = [
        form(&[A]),
        form(&["Content-Disposition: form-data; name=\"a\"\r\n\r\n2"]),
        form(&["Content-Disposition: form-data; name=\"b\"\r\n\r\n1"]),
        form(&["Content-Disposition: form-data; name=\"a\"; filename=\"f\"\r\n\r\n1"]),
        form(&["Content-Disposition: form-data; name=\"a\"\r\nContent-Type: text/plain\r\n\r\n1"]),
        form(&["Content-Disposition: form-data; name=\"a\"\r\nContent-Transfer-Encoding: base64\r\n\r\n1"]),
        form(&["Content-Disposition: form-data; name=\"a\"\r\n\r\n"]),
        form(&["Content-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n\r\n"]),
        form(&[A, A]),
        form(&[A, "Content-Disposition: form-data; name=\"b\"\r\n\r\n1"]),
        form(&[A, "Content-Disposition: form-data; name=\"a\"\r\n\r\n2"]),
        form(&["Content-Disposition: form-data; name=\"a\"\r\n\r\n2", A]),
        form(&["Content-Disposition: form-data; name*=utf-8''a\r\n\r\n1"]),
        form(&["X: 1\r\n\r\n1"]),
        mixed(&[A]),
        mixed(&[&[A, "\r\n"].concat()]),
        related(""),
        related("; type=a"),
        related("; type=b"),
        related("; start=a"),
        related("; type=a; start=a"),
        related("; type=\"a; start=a\""),
        batch(BATCH),
        batch(["2", BATCH[1], BATCH[2], BATCH[3]]),
        batch([BATCH[0], "multipart/related", BATCH[2], BATCH[3]]),
        batch([BATCH[0], "multipart/mixed; x=1", BATCH[2], BATCH[3]]),
        batch([BATCH[0], BATCH[1], "X: 1\r\n", BATCH[3]]),
        batch([BATCH[0], BATCH[1], BATCH[2], "b"]),
        // The second one's parts are not found, so that its boundary counts.
        nested("i"),
        nested("j"),
    ];
    for (i, one) in all.iter().enumerate() {
        assert!(one.is_some(), "{i}");
        for (j, other) in all.iter().enumerate().skip(i + 1) {
            assert_ne!(one, other, "{i} {j}");
        }
    }
}

#[test]
fn a_nested_body_that_is_not_plainly_written_counts_by_its_bytes() {
    let with = |fields: &str, outer: &str, inner: &str| {
        let nested = body(inner, &[A]);
        let part = format!("{fields}Content-Type: multipart/mixed; boundary={inner}\r\n\r\n{nested}");
        of(&format!("multipart/mixed; boundary={outer}"), &body(outer, &[&part]))
    };
    assert_eq!(with("X: 1\r\n", "o", "i"), with("X: 1\r\n", "p", "j"));
    for fields in [
        "Content-Transfer-Encoding: base64\r\n",
        "Content-Encoding: gzip\r\n",
        "Content-Type: text/plain\r\n",
        "X: 1\n\r\n",
        " folded\r\n",
        "no field\r\n",
    ] {
        assert_eq!(with(fields, "o", "i"), with(fields, "p", "i"), "{fields}");
        assert_ne!(with(fields, "o", "i"), with(fields, "o", "j"), "{fields}");
    }
}

#[test]
fn boundaries_below_the_deepest_level_count() {
    let nest = |innermost: &str, levels: usize| {
        let (mut kind, mut whole) = (format!("multipart/mixed; boundary={innermost}"), body(innermost, &[A]));
        for level in 1..levels {
            whole = body(&format!("l{level}"), &[&format!("Content-Type: {kind}\r\n\r\n{whole}")]);
            kind = format!("multipart/mixed; boundary=l{level}");
        }
        of(&kind, &whole)
    };
    assert_eq!(nest("x", DEPTH_MAX), nest("y", DEPTH_MAX));
    assert_ne!(nest("x", DEPTH_MAX + 1), nest("y", DEPTH_MAX + 1));
    assert!(nest("x", 100).is_some());
}

#[test]
fn a_body_that_is_not_plainly_written_has_no_canonical_form() {
    const TYPE: &str = "multipart/form-data; boundary=\"b\"";
    let whole = body("b", &[A]);
    assert!(of(TYPE, &whole).is_some());
    // The boundary, and so many others.
    let with_parameters = |others: usize| {
        let others: String = (0..others).map(|number| format!("; p{number}=x")).collect();
        format!("{TYPE}{others}")
    };
    for (content_type, body) in [
        ("multipart/form-data", &*whole),
        ("multipart/; boundary=b", &whole),
        ("multipart/form data; boundary=b", &whole),
        ("multipart/form-data; boundary=", &whole),
        ("multipart/form-data; boundary=c", &whole),
        ("multipart/form-data; boundary=b;", &whole),
        ("multipart/form-data; boundary=b x", &whole),
        ("multipart/form-data; boundary=b; boundary=b", &whole),
        ("multipart/form-data; boundary=b; Boundary=c", &whole),
        ("multipart/form-data; boundary*=b", &whole),
        ("multipart/form-data; boundary*0=b", &whole),
        ("multipart/form-data; boundary=b; boundary*=utf-8''c", &whole),
        ("multipart/form-data; boundary=\"b\\\"", &whole),
        ("multipart/form-data; boundary=\"\\b\"", &whole),
        ("multipart/form-data; x=a\"; boundary=b", &whole),
        ("multipart/form-data; x; boundary=b", &whole),
        ("multipart/form-data; charset=\"b\"", &whole),
        ("multipart/form-data; boundary=\"b b\"", &body("b b", &[A])),
        (TYPE, ""),
        (TYPE, "--b"),
        (TYPE, whole.strip_suffix("--\r\n").unwrap()),
        (TYPE, &format!("preamble\r\n{whole}")),
        (TYPE, &format!("{whole}epilogue")),
        (TYPE, &whole.replace("\r\n--b", "\r\n--b ")),
        (TYPE, &whole.replace("\r\n", "\n")),
        (TYPE, "--b\r\n--b--\r\n"),
        // Some services find a boundary there.
        (TYPE, &body("b", &["X: y\r\n\r\n1\n--b\n2"])),
        (TYPE, &body("b", &["X: --b\r\n\r\n1"])),
        (TYPE, &body("b", &["X: y\r\n\r\n--b"])),
        (TYPE, &body("b", &["X: y\r\n\r\n\r\n--bc"])),
        (TYPE, &body("b", &vec![A; PARTS_MAX])),
        (&with_parameters(PARAMETERS_MAX), &whole),
    ] {
        assert_eq!(of(content_type, body), None, "{content_type} {body}");
    }
    assert!(of(TYPE, &body("b", &vec![A; PARTS_MAX - 1])).is_some());
    assert!(of(&with_parameters(PARAMETERS_MAX - 1), &whole).is_some());
}
