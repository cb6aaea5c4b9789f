//! The client: one connection pool, the endpoint, the token, redirects.

use super::fault::{About, host, reason};
use super::{DEFAULT_ENDPOINT, HubError, Retry};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, LOCATION, RANGE};
use reqwest::{Response, Url};
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const MAX_REDIRECTS: usize = 5;
/// An answer that is read whole (a page of a listing, a header, an index) is at most this long.
pub(super) const MAX_ANSWER: usize = 64 << 20;

/// An access token. It is not printed, not even for debugging.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[derive(Clone)]
pub struct HubOptions {
    pub endpoint: String,
    pub token: Option<Token>,
    /// Address of a proxy; `None` = the system's own setting.
    pub proxy: Option<String>,
    /// A line that is silent for so long counts as lost.
    pub stall: Duration,
    /// Patience of what is not a download: listings, inspections.
    pub retry: Retry,
}

impl Default for HubOptions {
    fn default() -> Self {
        Self {
            endpoint: DEFAULT_ENDPOINT.to_owned(),
            token: None,
            proxy: None,
            stall: Duration::from_secs(30),
            retry: Retry::ASK,
        }
    }
}

impl fmt::Debug for HubOptions {
    /// Without the token and the proxy, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, stall, retry, .. } = self;
        write!(f, "HubOptions({endpoint}, stall {stall:?}, {retry:?}, ..)")
    }
}

impl HubOptions {
    /// The endpoint other tools are told by `HF_ENDPOINT`. Their token is not taken over: who calls decides about that.
    pub fn from_env() -> Self {
        let endpoint = std::env::var("HF_ENDPOINT").ok().filter(|e| !e.trim().is_empty());
        Self {
            endpoint: endpoint.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()),
            ..Self::default()
        }
    }
}

/// A hub that can be asked. Clones share connections.
#[derive(Clone)]
pub struct Hub {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) endpoint: Url,
    pub(super) token: Option<HeaderValue>,
    client: reqwest::Client,
    pub(super) stall: Duration,
    retry: Retry,
    /// Taken when the last clone goes.
    runtime: Option<tokio::runtime::Runtime>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting for its threads is not allowed where this may happen: on one of them.
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hub({})", self.inner.endpoint)
    }
}

impl Hub {
    pub fn new(options: &HubOptions) -> Result<Self, HubError> {
        let setup = |why: String| HubError::Setup { why };
        let mut endpoint = Url::parse(options.endpoint.trim())
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            // A password in an address ends up in logs.
            .filter(|url| url.username().is_empty() && url.password().is_none())
            .ok_or_else(|| setup("the hub's address is none".to_owned()))?;
        let folder = format!("{}/", endpoint.path().trim_end_matches('/'));
        endpoint.set_path(&folder);
        let token = options.token.as_ref().map(|token| {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.0.trim()))
                .map_err(|_| setup("the access token has characters no token has".to_owned()))?;
            value.set_sensitive(true);
            Ok(value)
        });
        // Fails only when the process has a provider already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = reqwest::Client::builder()
            .user_agent(concat!("foretoken/", env!("CARGO_PKG_VERSION")))
            // By hand, so that the token stays with the endpoint.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(options.stall);
        if let Some(proxy) = &options.proxy {
            let proxy = reqwest::Proxy::all(proxy)
                .map_err(|_| setup("the proxy's address cannot be read".to_owned()))?;
            client = client.proxy(proxy);
        } else if is_here(&endpoint) {
            // The system's proxy leads out of the machine.
            client = client.no_proxy();
        }
        let client = client.build().map_err(|e| setup(reason(e)))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            // It only moves bytes, which takes a fraction of what they take to write and hash. With a second thread
            // every piece would go from one to the other.
            .worker_threads(1)
            .thread_name("hub")
            .enable_all()
            .build()
            .map_err(|e| setup(e.to_string()))?;
        let inner = Inner {
            endpoint,
            token: token.transpose()?,
            client,
            stall: options.stall,
            retry: options.retry,
            runtime: Some(runtime),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.inner
            .runtime
            .as_ref()
            .expect("the runtime is taken only when the last clone is gone")
            .spawn(work);
    }

    /// Runs `work` on the hub's thread and waits. Unlike a runtime's own way of waiting, this holds on every thread but
    /// that one.
    pub(crate) fn wait_for<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let (done, result) = std::sync::mpsc::channel();
        self.spawn(async move {
            // The receiver waits below.
            let _ = done.send(work.await);
        });
        result.recv().expect("the work sends before it ends")
    }

    /// `ask` again for as long as its errors cure themselves.
    pub(super) async fn patiently<T, F: Future<Output = Result<T, HubError>> + Send>(
        &self,
        ask: impl Fn() -> F + Send,
    ) -> Result<T, HubError> {
        let mut failed = 0;
        loop {
            let error = match ask().await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let Some(wait) = self.inner.retry.wait(&error, failed) else { return Err(error) };
            failed += 1;
            tokio::time::sleep(wait).await;
        }
    }

    /// An address below the endpoint; the parts are encoded.
    pub(super) fn address(&self, parts: &[&str]) -> Url {
        let mut url = self.inner.endpoint.clone();
        url.path_segments_mut().expect("an http address has segments").pop_if_empty().extend(parts);
        url
    }

    /// A successful answer, redirects followed. The token goes to the endpoint and to no other place.
    pub(super) async fn open(
        &self,
        url: Url,
        range: Option<Range<u64>>,
        about: About<'_>,
    ) -> Result<Answer, HubError> {
        let mut url = url;
        let mut headers = HeaderMap::new();
        for _ in 0..=MAX_REDIRECTS {
            let ours = url.origin() == self.inner.endpoint.origin();
            let mut request = self.inner.client.get(url.clone());
            if let (true, Some(token)) = (ours, &self.inner.token) {
                request = request.header(AUTHORIZATION, token);
            }
            if let Some(range) = &range {
                request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end - 1));
            }
            let response = request.send().await.map_err(|e| self.line_error(&url, e))?;
            let status = response.status();
            // What the hub itself says of a file comes with the redirect, not with the bytes.
            for (name, value) in response.headers() {
                headers.insert(name.clone(), value.clone());
            }
            if !status.is_redirection() {
                return match status.is_success() {
                    true => Ok(Answer { response, headers, url }),
                    false => Err(self.refusal(ours, status, response.headers(), about)),
                };
            }
            let next = response
                .headers()
                .get(LOCATION)
                .and_then(|to| to.to_str().ok())
                .and_then(|to| url.join(to).ok())
                .filter(|to| matches!(to.scheme(), "http" | "https"))
                .filter(|to| url.scheme() == "http" || to.scheme() == "https");
            url = next.ok_or(HubError::NotTheHub {
                host: host(&url),
                why: "it redirects to nowhere safe",
            })?;
        }
        Err(HubError::NotTheHub { host: host(&url), why: "it redirects in circles" })
    }
}

/// A successful answer and every header on the way to it; later ones win.
pub(super) struct Answer {
    pub response: Response,
    pub headers: HeaderMap,
    pub url: Url,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The whole body, if it is no longer than an answer may be.
    pub async fn read(mut self, hub: &Hub) -> Result<Vec<u8>, HubError> {
        let mut out = Vec::new();
        loop {
            let chunk = self.response.chunk().await.map_err(|e| hub.line_error(&self.url, e))?;
            let Some(chunk) = chunk else { return Ok(out) };
            if out.len() + chunk.len() > MAX_ANSWER {
                return Err(HubError::NotTheHub {
                    host: host(&self.url),
                    why: "its answer is too long",
                });
            }
            out.extend_from_slice(&chunk);
        }
    }
}

fn is_here(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_never_printed() {
        let options = HubOptions { token: Some(Token::new("hf_secret")), ..HubOptions::default() };
        let hub = Hub::new(&options).expect("a client");
        let printed = format!("{options:?} {hub:?} {:?}", hub.inner.token);
        assert!(!printed.contains("secret"), "{printed}");
    }

    #[test]
    fn an_endpoint_may_have_a_path_and_nothing_else_is_one() {
        let hub = |endpoint: &str| {
            Hub::new(&HubOptions { endpoint: endpoint.to_owned(), ..HubOptions::default() })
        };
        let nested = hub("http://localhost:9/hub/").expect("a client");
        assert_eq!(nested.address(&["api", "a b"]).as_str(), "http://localhost:9/hub/api/a%20b");
        for wrong in ["", "huggingface.co", "ftp://x", "http://", "http://me:secret@x"] {
            assert!(matches!(hub(wrong), Err(HubError::Setup { .. })), "{wrong}");
        }
    }
}
