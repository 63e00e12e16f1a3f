//! The tower layer around a real tonic server, called by a real tonic client.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::uri::PathAndQuery;
use tollgate::tower::{TollgateLayer, header};
use tollgate::{Policy, Tollgate};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use tonic::server::{NamedService, UnaryService};
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};
use tower::Service;

/// Messages without content, so that nothing has to be generated.
#[derive(Clone, Default)]
struct Empty;

impl Codec for Empty {
    type Encode = ();
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Empty {
    type Item = ();
    type Error = Status;

    fn encode(&mut self, (): (), _: &mut EncodeBuf<'_>) -> Result<(), Status> {
        Ok(())
    }
}

impl Decoder for Empty {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, _: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        Ok(Some(()))
    }
}

#[derive(Clone)]
struct Orders;

impl NamedService for Orders {
    const NAME: &'static str = "shop.Orders";
}

type Answered<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl Service<http::Request<Body>> for Orders {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answered<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let is_broken = request.uri().path().ends_with("/Break");
        Box::pin(async move {
            Ok(tonic::server::Grpc::new(Empty).unary(Call { is_broken }, request).await)
        })
    }
}

struct Call {
    is_broken: bool,
}

impl UnaryService<()> for Call {
    type Response = ();
    type Future = Answered<Response<()>, Status>;

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let is_broken = self.is_broken;
        Box::pin(async move {
            if is_broken { Err(Status::internal("broken")) } else { Ok(Response::new(())) }
        })
    }
}

async fn call(channel: &Channel, path: &'static str, user: &str) -> Result<Response<()>, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.expect("connected");
    let mut request = Request::new(());
    request.metadata_mut().insert("x-user", user.parse().expect("plain"));
    client.unary(request, PathAndQuery::from_static(path), Empty).await
}

#[tokio::test]
async fn a_tonic_client_sees_resource_exhausted_and_the_headers() {
    let gate = Tollgate::open("memory:").await.expect("memory opens");
    let policy = r#"
        routes = ["/shop.Orders/*"]
        limits = [{ name = "user", max = 2, per = "3650d", by = ["user"] }]"#;
    let policy = Policy::from_toml("orders", policy).expect("valid");
    gate.apply(&policy, "test").await.expect("applied");
    let layer = TollgateLayer::by_routes(gate).key(header("x-user", "user"));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let server = Server::builder().layer(layer).add_service(Orders).serve_with_incoming(incoming);
    tokio::spawn(server);
    let channel = Channel::from_shared(format!("http://{address}")).expect("a URL");
    let channel = channel.connect().await.expect("it listens");
    for _ in 0..3 {
        let status = call(&channel, "/shop.Orders/Break", "ada").await.expect_err("broken");
        assert_eq!(status.code(), Code::Internal, "given back each time: {status:?}");
    }
    for left in ["1", "0"] {
        let answer = call(&channel, "/shop.Orders/Place", "ada").await.expect("it passes");
        assert_eq!(answer.metadata().get("x-ratelimit-remaining").expect("a header"), left);
    }
    let status = call(&channel, "/shop.Orders/Place", "ada").await.expect_err("refused");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains("2 of 2 used"), "{status:?}");
    assert!(status.metadata().get("retry-after").is_some(), "{status:?}");
    call(&channel, "/shop.Orders/Place", "bob").await.expect("somebody else");
}
