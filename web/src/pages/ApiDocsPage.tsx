import { api, openApiUrl } from "../api";
import { ErrorNote } from "../components/ErrorNote";
import { PageTitle } from "../components/PageTitle";
import { messages } from "../i18n";
import { type Field, groupsOf, type Operation } from "../openapi";
import { useLoader } from "../state/loader";

/** API reference, made from this server's OpenAPI document, without scripts from other hosts. */
export function ApiDocsPage() {
  const text = messages.value.docs;
  const found = useLoader("openapi", api.openApi);
  return (
    <>
      <PageTitle title={text.title}>
        <a class="button" href={openApiUrl} download="codehub-openapi.json" target="_blank" rel="noopener">
          openapi.json
        </a>
      </PageTitle>
      <p class="muted">{text.text}</p>
      <ErrorNote error={found.error} />
      {found.data &&
        groupsOf(found.data).map(({ tag, operations }) => (
          <section class="panel api-group" key={tag}>
            <h2>{tag}</h2>
            {operations.map((operation) => (
              <OperationDetails key={operation.id} operation={operation} />
            ))}
          </section>
        ))}
    </>
  );
}

function OperationDetails({ operation }: { operation: Operation }) {
  const text = messages.value.docs;
  return (
    <details class="api-operation" data-testid="api-operation">
      <summary>
        <code class="api-method">{operation.method}</code> <code>{operation.path}</code>
        <span class="muted">{operation.summary}</span>
      </summary>
      {operation.description && <p>{operation.description}</p>}
      <FieldTable title={text.request} none={text.nothing} fields={operation.fields} />
      <FieldTable title={text.response} none={text.nothing} fields={operation.response} />
    </details>
  );
}

function FieldTable({ title, none, fields }: { title: string; none: string; fields: Field[] }) {
  const text = messages.value.docs;
  return (
    <>
      <h3>{title}</h3>
      {fields.length === 0 ? (
        <p class="muted">{none}</p>
      ) : (
        <table>
          <tbody>
            {fields.map(({ name, type, required, location }) => (
              <tr key={`${location} ${name}`}>
                <th scope="row">
                  <code>{name}</code>
                </th>
                <td>{type}</td>
                <td class="muted">
                  {[location === "body" ? "" : location, required ? text.required : ""]
                    .filter(Boolean)
                    .join(", ")}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </>
  );
}
