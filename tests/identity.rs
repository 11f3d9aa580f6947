//! The values by which stored keys are found and compared, written out. **They never change after a release**: with
//! another value, the retry of an earlier request would be executed again (record, scope, space) or refused as another
//! request (fingerprint).
//!
//! `tests/golden-files` names this file: lines may be added to it, and none may be changed or removed. Whole stores
//! with their answers are in `tests/fixtures`; they also hold what is sealed under a
//! secret, and the names of operations.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use http::{HeaderMap, HeaderValue};
use oncegate_domain::fingerprint::{FingerprintInput, Recipe, Secret, Secrets};
use oncegate_domain::ids::RecordId;
use oncegate_domain::key::{Key, KeyLimits, KeySyntax};
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::scope::{Salt, Scope};
use oncegate_domain::space::SpaceHash;

fn salt() -> Salt {
    Salt::new(std::array::from_fn(|byte| u8::try_from(byte).unwrap()))
}

fn caller() -> Scope {
    Scope::from_parts(&salt(), [("authorization", Some(&b"Bearer t"[..]))])
}

#[test]
fn a_record_keeps_its_id() {
    let limits = KeyLimits { length_min: 1, length_max: 255 };
    let key = Key::parse(b"order-42", KeySyntax::Ietf, limits).unwrap();
    let id = RecordId::derive("shop", &caller(), &SpaceHash::from_text("POST /v1/pay"), &key);
    assert_eq!(id.to_string(), "10e986f146070b1da987f71d9244fe199a625699df081403c1c34b8b08d4e0d2");
}

#[test]
fn a_key_is_the_same_in_each_of_its_spellings() {
    let limits = KeyLimits { length_min: 1, length_max: 255 };
    for (syntax, value, key) in [
        (KeySyntax::Ietf, r#""a \"b\"";p=1"#, r#"a "b""#),
        (KeySyntax::Ietf, "bare", "bare"),
        (KeySyntax::Opaque, r#""quoted""#, r#""quoted""#),
        (KeySyntax::SfString, r#""quoted""#, "quoted"),
        (KeySyntax::Uuid, "0B1E4C5C-92A4-4F0E-8A3B-3F1D2C4B5A69", "0b1e4c5c-92a4-4f0e-8a3b-3f1d2c4b5a69"),
    ] {
        assert_eq!(Key::parse(value.as_bytes(), syntax, limits).unwrap().as_bytes(), key.as_bytes(), "{value}");
    }
}

#[test]
fn a_caller_keeps_the_hash_under_its_services_salt() {
    assert_eq!(caller().to_string(), "f33cac206e2a05375f5f31b01a13ac81e3c9ca74d17ec475fb70ff695bbb48b8");
    let parts = [("authorization", None), ("header:x-api-key", Some(&b"\xff key"[..]))];
    let by_key = Scope::from_parts(&salt(), parts);
    assert_eq!(by_key.to_string(), "1c04f3b9cc3fcc2616be4aeb722c32e70ba914701cd7d0cfde4e8256a12c4aaf");
}

#[test]
fn a_salt_keeps_the_codes_of_its_other_purposes() {
    let code = salt().mac("purpose", [&b"a"[..], &b""[..]]);
    assert_eq!(
        data_encoding::HEXLOWER.encode(&code),
        "e8fde8c6563fd786f3883d96144b2271bad1258a61e9747cda52e5f620cb64be"
    );
}

#[test]
fn a_space_keeps_its_hash() {
    for (text, hash) in [
        ("POST /v1/pay", "1c30eacbae8bdebed59b603d0df0ffe3cdfcdca1300dd670c96ecbc17ee1903e"),
        ("POST a.example/v1/pay", "12a692928d065223c2f637b4e33311993dbc44c9fe8cc62696bb93cb1d3171c5"),
        ("route pay", "65d31295cb122f4c398a880eeb45706c0c1ab0120dd3f7ecd1e82ba9ad7de725"),
        ("service", "9df6b026a8c6c26e3c3acd2370a16e93fffdc0015ff5bd879218788025db0280"),
    ] {
        assert_eq!(SpaceHash::from_text(text).to_string(), hash, "{text}");
    }
}

#[test]
fn a_request_keeps_its_fingerprint_by_each_stored_recipe() {
    let secrets = Secrets::new([Secret::new("correct horse")]);
    let json = r#"{"to": "x", "amount": 10}"#;
    let parts = "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--B--\r\n";
    let (json_type, form_type) = ("application/json", "application/x-www-form-urlencoded");
    for (recipe, content_type, body, hash) in [
        ("1", json_type, json, "b8f6a0e6afb401b59a47fc9bd433854db5678cbe7e011ea1ed370e5b47b9a8df"),
        ("1 body=raw", json_type, json, "7e0b22bad5478a6632ebdd7d2dcd8c4e6376085c5c293962bf7b7f991401ad55"),
        (
            "1 body=json query=no",
            "text/plain",
            json,
            "ef3bd788906048b5ece47cb1544c8af3caffbc706ef23a4ad01509961f92a691",
        ),
        ("1 body=none", json_type, json, "25c98b7b50378df0963d362e761905b5638d9ac3d9a0c5d656e186e88929a285"),
        (
            "1 headers=content-type,x-none",
            json_type,
            json,
            "76d77bc931dc668c3fa4345996c71a284cd8a25888c7c4c03be489cb3e67e9cc",
        ),
        ("1 hmac=2234b96a", json_type, json, "b184b5399806e3ee86e4d3864eaea27cf7641578a8a72bc8d9c5089367b91f54"),
        ("1", "text/plain", "words", "0f36962b12a305cd73e90b0e4c1a06869d960a856d746aab8be71720344e1284"),
        (
            "1",
            json_type,
            r#"{"b":1.50e3,"a":[true,null,"\u00e9"],"n":12345678901234567890.10}"#,
            "427acef3447fdaf868ef869990c58a9f32eca91120ee170c87812e5c2998c1d8",
        ),
        ("1", form_type, "b=%c3%a9+x&a=1", "67a60af5c6cbdaf22ed79526f089218a4720e2044f441a23290cca9095ebbb26"),
        (
            "1 body=form",
            "text/plain",
            "b=%c3%a9+x&a=1",
            "67a60af5c6cbdaf22ed79526f089218a4720e2044f441a23290cca9095ebbb26",
        ),
        (
            "1",
            "multipart/form-data; boundary=B",
            parts,
            "882f2b6dff614a14af6dc5e976cb9f7ead98c9e0aa6cf375ed9dce7b7bb3103e",
        ),
        ("1", "multipart/mixed; boundary=B", parts, "d7e5c2484c9835fb259c30895a437510b729945cfc072563a010e8c424e97c15"),
        ("1", "application/octet-stream", "bytes", "cdb39e3be611ea1c96757bacd7cdae72ea40590b1c8d61f95efb1955cfd08d06"),
        ("1 path=lenient:01", json_type, json, "b8f6a0e6afb401b59a47fc9bd433854db5678cbe7e011ea1ed370e5b47b9a8df"),
        ("1 headers=host,cookie", json_type, json, "07af4ea082c089c489d75b74d5357541342370035a2bba3af2d4edb94ec6d4b5"),
        ("1 include=json%3A/to", json_type, json, "72105c4a928d50d3e2534114a4df8a62c514400201b88f481838d69366512ba5"),
        (
            "1 exclude=json%3A/to,json%3A/%2A/at",
            json_type,
            json,
            "cf47b8f2500ecdce345cb3183b1f58396bb926ac898eba2d6ef68903df0398dd",
        ),
        (
            "1 exclude=form%3Aa,query%3Aa",
            form_type,
            "b=%c3%a9+x&a=1",
            "6bd7ad67bd23123504bb21b305bbf978cdabb65ad4b394a2a17ac580f87fc54c",
        ),
        (
            "1 exclude=xml%3A/a/b",
            "application/xml",
            "<a x='1'><b>2</b>3</a>",
            "cfb72760271e474c9a5ad0bb8d6e3fbe6c73da8d8f9636b27aa339e1fa5fab6c",
        ),
        (
            "1 exclude=cbor%3A/b",
            "application/cbor",
            "aa",
            "f97af40803aae9c1de9c1a7d50b4589095116c939fbe3dca9338df01db025480",
        ),
        (
            "1",
            "application/protobuf",
            "\n\u{1}a\u{10}\u{5}",
            "d3f468e8c8f9be4eebda9e00770457acbcc2dbd169cdc875f246ce77398214f4",
        ),
        (
            "1 body=graphql exclude=graphql%3A%40idempotent%28key%29",
            json_type,
            r#"{"query":"mutation { pay(n: 1) @idempotent(key: \"k\") }"}"#,
            "d81f79100dd637e90a2a0bb838724bd65f9e9a1ee70406ed664e0efb755c0a13",
        ),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static(content_type));
        let input = FingerprintInput {
            method: "POST",
            path: &RequestPath::new("/v1/pay"),
            pattern: None,
            host: Some(b"pay.example"),
            query: Some("a=1"),
            headers: &headers,
            body: body.as_bytes(),
        };
        let read = Recipe::from_stored(recipe).unwrap_or_else(|| panic!("{recipe} is not known any more"));
        assert_eq!(read.to_stored(), recipe);
        assert_eq!(read.fingerprint(&input, &secrets).unwrap().to_string(), hash, "{recipe} of {content_type} {body}");
    }
}
