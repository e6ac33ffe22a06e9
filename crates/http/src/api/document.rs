//! The description of the API, without the operations.

use utoipa::OpenApi as _;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, ResponseBuilder, SecurityRequirement};

use crate::problem::Problem;

/// What every operation may answer.
const PROBLEM: &str = "Problem";

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "uvala",
        description = "Switches of a uvala daemon. Types are those of its control API; listings \
                       come in pages: ask again with the `next` of a page as `from`.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
        contact(),
    ),
    tags(
        (name = "daemon", description = "The daemon, its users and workers"),
        (
            name = "switches",
            description = "Switches: addresses, groups, chains, rules, functions, programs"
        ),
        (name = "ports", description = "Ports and their counters"),
        (name = "calls", description = "Everything else"),
        (name = "streams", description = "Server-sent events"),
    ),
    components(schemas(Problem)),
    servers((url = "/", description = "This server")),
)]
struct Head;

/// The description of no operations.
pub fn head() -> OpenApi {
    Head::openapi()
}

/// Adds what all operations have: errors and tokens.
pub fn complete(mut document: OpenApi) -> OpenApi {
    let components = document.components.get_or_insert_default();
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(PROBLEM))).build();
    let response = ResponseBuilder::new()
        .description("What is wrong, and what to do")
        .content("application/problem+json", content)
        .build();
    components.responses.insert(PROBLEM.to_owned(), RefOr::T(response));
    let token = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    components.add_security_scheme("token", SecurityScheme::Http(token));
    for operation in document.paths.paths.values_mut().flat_map(operations) {
        let responses = &mut operation.responses.responses;
        for response in responses.values_mut() {
            if let RefOr::T(response) = response
                && response.description.is_empty()
            {
                response.description = "What there is".to_owned();
            }
        }
        let problem = RefOr::Ref(Ref::from_response_name(PROBLEM));
        responses.insert("default".to_owned(), problem);
    }
    let none = SecurityRequirement::default();
    document.security = Some(vec![SecurityRequirement::new::<_, _, String>("token", []), none]);
    document
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, post, put, patch, delete, .. } = item;
    [get, post, put, patch, delete].into_iter().flatten()
}
