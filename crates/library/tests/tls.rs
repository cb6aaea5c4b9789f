//! The encrypted line. The certificate is made here, so nobody vouches for it.

mod support;

use foretoken_library::{HubError, RepoRef};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::sync::Arc;
use support::*;

#[test]
fn a_certificate_nobody_vouches_for_is_told_apart_from_being_offline() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("fits");
    let config = Arc::new(config);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut tls = rustls::ServerConnection::new(Arc::clone(&config)).expect("a connection");
            // The other side hangs up in the middle, as it should.
            let _ = tls.complete_io(&mut stream);
        }
    });
    let hub = hub(&format!("https://localhost:{port}"), Some("hf_secret"));
    let error = hub.list(&RepoRef::main(REPO.parse().expect("a name"))).expect_err("refused");
    let HubError::Untrusted { host, .. } = error else { panic!("{error:?}") };
    assert_eq!(host, format!("localhost:{port}"));
}
