//! Forms: a field by its name, and the fields by which two forms are compared.

pub use super::form_fields::FormPlace;
use super::form_fields::by_name;
use super::multipart;
use super::value::{BodyPart, PlaceError, PlaceSelection, PlaceValue, json_value, only};
use crate::media_type::is_form;
use crate::urlencoded::pairs;

/// Reads a field of a form, urlencoded or multipart as the `Content-Type` says. A body without one is read as
/// urlencoded.
pub fn value_at(content_type: &[u8], body: &[u8], (name, pointer): &FormPlace) -> PlaceValue {
    let value = if multipart::is_form_data(content_type) {
        only(
            multipart::fields(content_type, body)
                .ok_or(NOT_PLAIN)?
                .into_iter()
                .filter_map(|field| (field.name == name.as_bytes()).then(|| field.content.to_vec())),
        )?
    } else if content_type.is_empty() || is_form(content_type) {
        only(pairs(body).filter(|(other, _)| other == name.as_bytes()).map(|(_, value)| value))?
    } else {
        return Err(NO_FORM);
    };
    match (value, pointer) {
        (Some(document), Some(pointer)) => json_value(&document, pointer, NO_JSON),
        (value, _) => Ok(value),
    }
}

const NO_FORM: PlaceError = PlaceError::Unreadable(
    "A value may be in a form field, and the body is neither application/x-www-form-urlencoded nor multipart/form-data.",
);

const NOT_PLAIN: PlaceError = PlaceError::Unreadable(
    "A value may be in a field of the multipart form, and programs may find other parts in it: its boundary stands in a part, or a part \
     does not name its field plainly.",
);

const NO_JSON: PlaceError = PlaceError::Unreadable(
    "A field of the form should have a JSON document, and has something else, or JSON that programs read in different ways.",
);

/// The fields of an urlencoded form that count: by name, in any order between names, in theirs within one name. Some
/// clients keep their fields in a set, and send another order in each run.
pub fn parts(body: &[u8], selection: PlaceSelection<'_, FormPlace>) -> Vec<BodyPart> {
    by_name(pairs(body).map(|(name, value)| (name, Vec::new(), value)), selection)
}

#[cfg(test)]
mod tests {
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
        parts(body.as_bytes(), PlaceSelection { include: &include, exclude: &exclude })
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
        ] {
            assert_eq!(whole(one) == whole(other), is_same, "{one} {other}");
        }
        let places: Vec<_> = whole("b=1&a=2&b=3").into_iter().map(|part| part.place).collect();
        assert_eq!(places, ["form:a", "form:b"]);
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
    fn a_value_is_read_by_its_name_and_by_its_pointer() {
        let boundary = b"multipart/form-data; boundary=b";
        let upload = "--b\r\nContent-Disposition: form-data; name=\"request\"\r\nContent-Type: application/json\r\n\r\n\
                      {\"idempotency_key\":\"k-1\"}\r\n--b\r\nContent-Disposition: form-data; name=file; filename=\"a.png\"\
                      \r\n\r\n\u{0}\r\n--b--\r\n";
        let several = upload.replace("name=file;", "name=request;");
        let star = upload.replace("name=file", "name*=utf-8''file");
        let cut = upload.replace("--b--", "");
        let unreadable = |value: &PlaceValue| matches!(value, Err(PlaceError::Unreadable(_)));
        for (content_type, body, text, found) in [
            (FORM, "a=1&k=x+y", "form:k", Ok(Some("x y"))),
            (b"", "a=1&k=x", "form:k", Ok(Some("x"))),
            (FORM, "a=1", "form:k", Ok(None)),
            (FORM, "k=1&k=1", "form:k", Err(PlaceError::Several)),
            (FORM, "payload=%7B%22id%22%3A7%7D", "form:payload#/id", Ok(Some("7"))),
            (FORM, r#"payload={"id":{}}"#, "form:payload#/id", Err(PlaceError::NotScalar)),
            (FORM, "payload={", "form:payload#/id", Err(NO_JSON)),
            (FORM, "a=1", "form:payload#/id", Ok(None)),
            (b"application/json", "k=1", "form:k", Err(NO_FORM)),
            (b"multipart/mixed; boundary=b", "k=1", "form:k", Err(NO_FORM)),
            (boundary, upload, "form:request#/idempotency_key", Ok(Some("k-1"))),
            (boundary, upload, "form:file", Ok(Some("\u{0}"))),
            (boundary, upload, "form:other", Ok(None)),
            (boundary, &several, "form:request", Err(PlaceError::Several)),
            (boundary, &star, "form:request", Err(NOT_PLAIN)),
            (boundary, &cut, "form:request", Err(NOT_PLAIN)),
            (boundary, "", "form:request", Err(NOT_PLAIN)),
        ] {
            let value = value_at(content_type, body.as_bytes(), &place(text));
            let expected = found.map(|text| text.map(|text| text.as_bytes().to_vec()));
            assert!(value == expected || unreadable(&value) && unreadable(&expected), "{body} {text}: {value:?}");
        }
    }
}
