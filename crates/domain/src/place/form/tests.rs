//! Tables of forms: the same whatever their spelling, not the same, and unreadable.

use super::super::Place;
use super::*;

const FORM: &[u8] = b"application/x-www-form-urlencoded; charset=utf-8";

fn place(text: &str) -> FormPlace {
    match Place::parse(text) {
        Ok(Place::Form(name, pointer)) => (name, pointer),
        other => panic!("{text}: {other:?}"),
    }
}

fn selected(body: &str, include: &[&str], exclude: &[&str]) -> Vec<BodyPart> {
    let [include, exclude] = [include, exclude].map(|list| list.iter().map(|text| place(text)).collect::<Vec<_>>());
    parts(body.as_bytes(), PlaceSelection { include: &include, exclude: &exclude }).unwrap()
}

fn whole(body: &str) -> Vec<BodyPart> {
    selected(body, &[], &[])
}

#[test]
fn fields_count_by_name_whatever_their_order_and_spelling() {
    for (one, other, is_same) in [
        ("a=1&b=2", "b=2&a=1", true),
        ("a=1&b=2&a=3", "b=2&a=1&a=3", true),
        ("a=1&a=3", "a=3&a=1", false),
        ("a=x+y&b=%7e", "b=~&a=x%20y", true),
        ("&&a=1&", "a=1", true),
        ("a", "a=", true),
        ("a=1", "a=1&b=", false),
        ("a=1&b=2", "a=1%26b=2", false),
        ("a=1&a=2", "a=12&a=", false),
        ("a=b=c", "a=b%3Dc", true),
        ("a=%&b=%zz", "b=%25zz&a=%25", true),
        ("%ff=1", "%fe=1", false),
        ("", "", true),
        ("", "=", false),
        ("a=1%00&b=2", "b=2&a=1%00", true),
        ("a=1&b[c][d]=2&b[c][e]=3", "b[c][e]=3&b[c][d]=2&a=1", true),
    ] {
        assert_eq!(whole(one) == whole(other), is_same, "{one} {other}");
    }
    let places: Vec<_> = whole("b=1&a=2&b=3").into_iter().map(|part| part.place).collect();
    assert_eq!(places, ["form:a", "form:b"]);
}

#[test]
fn the_order_of_names_counts_where_services_make_one_value_of_them() {
    for (one, other, is_same) in [
        ("m[a]=1&m[b]=2", "m[b]=2&m[a]=1", true),
        ("i[0][p]=1&i[1][p]=2&i[1][t][]=3", "i[1][t][]=3&i[1][p]=2&i[0][p]=1", true),
        ("t[]=1&t[]=2&u=3", "u=3&t[]=1&t[]=2", true),
        ("a=1&a-b=2&ab=3&b[a]=4", "b[a]=4&ab=3&a-b=2&a=1", true),
        ("a=1&a-b=2&a[x]=3", "a-b=2&a=1&a[x]=3", true),
        // Rack gives the 9 to the second element, or to the first.
        ("i[][p]=1&i[][p]=2&i[][q]=9", "i[][p]=1&i[][q]=9&i[][p]=2", false),
        ("i[][p]=1&x=0&i[][q]=9", "x=0&i[][p]=1&i[][q]=9", true),
        // In PHP and qs the last one counts, or the list gets another order.
        ("a=1&a[x]=2", "a[x]=2&a=1", false),
        ("a[x][y]=1&a[x]=2", "a[x]=2&a[x][y]=1", false),
        ("a=1&a-b=0&a[x]=2&a[y]=3", "a-b=0&a=1&a[y]=3&a[x]=2", false),
        ("a[]=1&a[0]=2", "a[0]=2&a[]=1", false),
        ("a[]=1&a=2", "a=2&a[]=1", false),
        // One name in PHP.
        ("a.b=1&a_b=2", "a_b=2&a.b=1", false),
        ("a+b=1&a_b=2", "a_b=2&a+b=1", false),
        ("+a=1&a=2", "a=2&+a=1", false),
        // PHP reads `a[b]`, `a_b` and `a`, and takes a bracket with a blank for one without.
        ("a[b]=1&a[b]c=2", "a[b]c=2&a[b]=1", false),
        ("a[b=1&a_b=2", "a_b=2&a[b=1", false),
        ("a=1&a%00x=2", "a%00x=2&a=1", false),
        ("a[ ][x]=1&a[ ][y]=2", "a[ ][y]=2&a[ ][x]=1", false),
        ("a]=1&b=2", "b=2&a]=1", false),
        ("=1&a=2", "a=2&=1", false),
        // One name in ASP.NET.
        ("\u{c9}=1&\u{e9}=2", "\u{e9}=2&\u{c9}=1", false),
        ("A=1&a=2", "a=2&A=1", false),
        ("A=1&a[x]=2", "a[x]=2&A=1", false),
    ] {
        assert_eq!(whole(one) == whole(other), is_same, "{one} {other}");
    }
    for (body, expected) in [
        ("t[]=1&t[]=2", &["form:t[]"][..]),
        ("m[b]=1&m[a]=1", &["form:m[a]", "form:m[b]"]),
        ("i[][q]=1&i[][p]=1&a=2", &["form:a", "form:i"]),
        ("a[x]=1&a=2&a[y]=1", &["form:a"]),
    ] {
        let places: Vec<_> = whole(body).into_iter().map(|part| part.place).collect();
        assert_eq!(places, expected, "{body}");
    }
}

#[test]
fn fields_that_are_excluded_or_not_included_do_not_count() {
    let signed = |body: &str| selected(body, &[], &["form:timestamp", "form:signature"]);
    assert_eq!(signed("q=1&timestamp=2&signature=x"), signed("signature=y&q=1&timestamp=3"));
    assert_ne!(signed("q=1&timestamp=2"), signed("q=2&timestamp=2"));
    let only = |body: &str| selected(body, &["form:q"], &[]);
    assert_eq!(only("q=1&timestamp=2"), only("q=1"));
    let without_key = |body: &str| selected(body, &[], &["form:request#/key"]);
    assert_eq!(without_key(r#"request={"key":"a","n":1.0}"#), without_key(r#"request={"n":1,"key":"b"}"#));
    assert_ne!(without_key(r#"request={"key":"a","n":1}"#), without_key(r#"request={"key":"a","n":2}"#));
    assert_ne!(without_key("request=no+JSON"), without_key("request=no+json"));
    let amount = |body: &str| selected(body, &["form:request#/n"], &[]);
    assert_eq!(amount(r#"request={"key":"a","n":1}"#), amount(r#"x=1&request={"n":1}"#));
    // A text is not the canonical form of a document.
    assert_ne!(whole(r#"request={"n":1}"#), without_key(r#"request={"n":1}"#));
}

#[test]
fn a_form_of_too_many_fields_has_no_parts() {
    let parts = |count: usize| parts("a=1&".repeat(count).as_bytes(), PlaceSelection { include: &[], exclude: &[] });
    assert!(parts(4096).is_some());
    assert_eq!(parts(4097), None);
}

#[test]
fn a_value_is_read_by_its_name_and_by_its_pointer() {
    for (content_type, body, text, found) in [
        (FORM, "a=1&k=x+y", "form:k", Ok(Some("x y"))),
        (FORM, "a=1&%6b=%c3%a9%2b", "form:k", Ok(Some("\u{e9}+"))),
        (FORM, "K=1&k[]=2", "form:k", Ok(None)),
        (FORM, "&&k", "form:k", Ok(Some(""))),
        (FORM, "\u{feff}k=1&k=1", "form:k", Err(PlaceError::Several)),
        (FORM, "\0k\0=\x001", "form:k", Err(NOT_UTF8)),
        (b"", "a=1&k=x", "form:k", Ok(Some("x"))),
        (FORM, "a=1", "form:k", Ok(None)),
        (FORM, "k=1&k=1", "form:k", Err(PlaceError::Several)),
        (FORM, "payload=%7B%22id%22%3A7%7D", "form:payload#/id", Ok(Some("7"))),
        (FORM, r#"payload={"id":{}}"#, "form:payload#/id", Err(PlaceError::NotScalar)),
        (FORM, r#"payload={"id":1,"id":1}"#, "form:payload#/id", Err(NO_JSON)),
        (FORM, "payload={", "form:payload#/id", Err(NO_JSON)),
        (FORM, "a=1", "form:payload#/id", Ok(None)),
        (b"application/json", "k=1", "form:k", Err(NO_FORM)),
        (b"multipart/mixed; boundary=b", "k=1", "form:k", Err(NO_FORM)),
    ] {
        let expected = found.map(|text| text.map(|text| text.as_bytes().to_vec()));
        assert_eq!(value_at(content_type, body.as_bytes(), &place(text)), expected, "{body} {text}");
    }
}

#[test]
fn a_value_of_a_multipart_form_is_read_from_the_only_part_with_its_name() {
    const K: &str = "Content-Disposition: form-data; name=\"k\"\r\n";
    let with = |head: &str, value: &str| {
        format!("--b\r\n{head}\r\n{value}\r\n--b\r\nContent-Disposition: form-data; name=other\r\n\r\n1\r\n--b--\r\n")
    };
    let typed = |media_type: &str, value: &str| with(&format!("{K}Content-Type: {media_type}\r\n"), value);
    let named = |parameters: &str| with(&format!("Content-Disposition: form-data; {parameters}\r\n"), "v");
    let encoded = |encoding: &str| with(&format!("{K}Content-Transfer-Encoding: {encoding}\r\n"), "v");
    let json = r#"{"key":"v"}"#;
    for (body, text, found) in [
        (with(K, "v"), "form:k", Ok(Some("v"))),
        (with(K, "\0"), "form:k", Ok(Some("\0"))),
        (with(K, ""), "form:k", Ok(Some(""))),
        (with(K, "v"), "form:other", Ok(Some("1"))),
        (with(K, "v"), "form:third", Ok(None)),
        (typed("application/json", json), "form:k#/key", Ok(Some("v"))),
        (typed("application/json", "{"), "form:k#/key", Err(NO_JSON)),
        (typed("text/plain; charset=UTF-8", "\u{e9}"), "form:k", Ok(Some("\u{e9}"))),
        (typed("text/plain; charset=ISO-8859-1", "v"), "form:k", Ok(Some("v"))),
        (typed("text/plain; charset=ISO-8859-1", "\u{e9}"), "form:k", Err(NOT_UTF8)),
        (typed("text/plain;x=\"y\";Charset=utf-7", "v"), "form:k", Err(NOT_UTF8)),
        (typed("text/plain; charset*=utf-8''utf-7", "v"), "form:k", Err(NOT_UTF8)),
        (typed("text/plain\r\nContent-Type: text/plain; charset=utf-7", "v"), "form:k", Err(NOT_UTF8)),
        // Nobody has asked for the value of that part.
        (typed("text/plain; charset=utf-7", "v"), "form:other", Ok(Some("1"))),
        (named("name=k"), "form:k", Ok(Some("v"))),
        (named("filename=\"blob\"; NAME=\"k\""), "form:k", Ok(Some("v"))),
        (named("name=\"k%22%0D%0a%2522\""), "form:k\"\r\n%2522", Ok(Some("v"))),
        (named("name=\"k%41\""), "form:k%41", Ok(Some("v"))),
        (named("name=other"), "form:other", Err(PlaceError::Several)),
        (named("name=k; name=k"), "form:k", Err(NOT_PLAIN)),
        (named("name=\"k\\\"\""), "form:k", Err(NOT_PLAIN)),
        (named("name*=utf-8''k"), "form:k", Err(NOT_PLAIN)),
        (named("name=k; name*0=k"), "form:k", Err(NOT_PLAIN)),
        (named("filename=k"), "form:k", Err(NOT_PLAIN)),
        (named("name=k\r\n folded"), "form:k", Err(NOT_PLAIN)),
        (named("name=k\nX: y"), "form:k", Err(NOT_PLAIN)),
        (named("name=k\r\nContent-Disposition: form-data; name=k"), "form:k", Err(NOT_PLAIN)),
        (with("Content-Disposition: attachment; name=k\r\n", "v"), "form:k", Err(NOT_PLAIN)),
        (with("", "v"), "form:other", Err(NOT_PLAIN)),
        (encoded("8BIT"), "form:k", Ok(Some("v"))),
        (encoded("base64"), "form:k", Err(NOT_PLAIN)),
        (encoded("7bit\r\nContent-Encoding: gzip"), "form:k", Err(NOT_PLAIN)),
        (with(K, "v\n--b"), "form:k", Err(NOT_PLAIN)),
        (with(K, "v").replace("--b--", ""), "form:k", Err(NOT_PLAIN)),
        (with(K, "v").replace("\r\n", "\n"), "form:k", Err(NOT_PLAIN)),
        (format!("preamble\r\n{}", with(K, "v")), "form:k", Err(NOT_PLAIN)),
        (format!("{}epilogue", with(K, "v")), "form:k", Err(NOT_PLAIN)),
        (String::new(), "form:k", Err(NOT_PLAIN)),
    ] {
        let expected = found.map(|text| text.map(|text| text.as_bytes().to_vec()));
        let value = value_at(b"multipart/form-data; boundary=b", body.as_bytes(), &place(text));
        assert_eq!(value, expected, "{body} {text}");
    }
}
