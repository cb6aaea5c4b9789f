use crate::Tokens;
use foretoken_library::hub::{HubOptions, Token};
use foretoken_library::{Hub, HubError};
use foretoken_protocol::Settings;
use std::sync::{Mutex, PoisonError};

/// The hub as the settings and the token have it. Made when it is first asked for, made again when they change.
pub(crate) struct Connection {
    pub tokens: Tokens,
    made: Mutex<Option<(Line, Hub)>>,
}

#[derive(PartialEq)]
struct Line {
    endpoint: String,
    proxy: Option<String>,
    token: Option<String>,
}

fn given(text: Option<&String>) -> Option<String> {
    text.map(|t| t.trim().to_owned()).filter(|t| !t.is_empty())
}

/// The address of the hub: the settings', the environment's, or the public one.
pub(crate) fn endpoint(settings: &Settings) -> String {
    given(settings.hub_endpoint.as_ref()).unwrap_or_else(|| HubOptions::from_env().endpoint)
}

impl Connection {
    pub fn new(tokens: Tokens) -> Self {
        Self { tokens, made: Mutex::new(None) }
    }

    pub fn hub(&self, settings: &Settings) -> Result<Hub, HubError> {
        let line = Line {
            endpoint: endpoint(settings),
            proxy: given(settings.hub_proxy.as_ref()),
            token: self.tokens.get(),
        };
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, hub)) = made.as_ref().filter(|(with, _)| *with == line) {
            return Ok(hub.clone());
        }
        let hub = open(&line)?;
        *made = Some((line, hub.clone()));
        Ok(hub)
    }
}

fn open(line: &Line) -> Result<Hub, HubError> {
    Hub::new(&HubOptions {
        endpoint: line.endpoint.clone(),
        proxy: line.proxy.clone(),
        token: line.token.clone().map(Token::new),
        ..HubOptions::default()
    })
}

/// Whether a hub could be asked with these settings; nothing is sent.
pub(crate) fn check(settings: &Settings) -> Result<(), HubError> {
    let proxy = given(settings.hub_proxy.as_ref());
    open(&Line { endpoint: endpoint(settings), proxy, token: None }).map(drop)
}
