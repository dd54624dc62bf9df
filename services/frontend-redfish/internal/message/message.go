// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package message has the messages of the DMTF Base registry that this service
// sends, and the error answers made of them.
package message

import (
	"net/http"
	"strings"
)

// Registry is the registry that the message ids refer to, and its version.
const (
	Registry        = "Base"
	RegistryVersion = "1.22.1"
	idPrefix        = Registry + ".1.22." // DSP0266 wants major and minor version in an id.
)

// Key names a message of the Base registry.
type Key string

// The messages that this service sends.
const (
	ActionNotSupported             Key = "ActionNotSupported"
	ActionParameterMissing         Key = "ActionParameterMissing"
	ActionParameterNotSupported    Key = "ActionParameterNotSupported"
	ActionParameterValueNotInList  Key = "ActionParameterValueNotInList"
	ActionParameterValueTypeError  Key = "ActionParameterValueTypeError"
	EmptyJSON                      Key = "EmptyJSON"
	GeneralError                   Key = "GeneralError"
	HeaderInvalid                  Key = "HeaderInvalid"
	InsufficientPrivilege          Key = "InsufficientPrivilege"
	InternalError                  Key = "InternalError"
	MalformedJSON                  Key = "MalformedJSON"
	NoOperation                    Key = "NoOperation"
	NoValidSession                 Key = "NoValidSession"
	OperationFailed                Key = "OperationFailed"
	OperationNotAllowed            Key = "OperationNotAllowed"
	PayloadTooLarge                Key = "PayloadTooLarge"
	PreconditionFailed             Key = "PreconditionFailed"
	PropertyMissing                Key = "PropertyMissing"
	PropertyNotWritable            Key = "PropertyNotWritable"
	PropertyUnknown                Key = "PropertyUnknown"
	PropertyValueConflict          Key = "PropertyValueConflict"
	PropertyValueError             Key = "PropertyValueError"
	PropertyValueNotInList         Key = "PropertyValueNotInList"
	PropertyValueTypeError         Key = "PropertyValueTypeError"
	QueryCombinationInvalid        Key = "QueryCombinationInvalid"
	QueryNotSupported              Key = "QueryNotSupported"
	QueryNotSupportedOnOperation   Key = "QueryNotSupportedOnOperation"
	QueryNotSupportedOnResource    Key = "QueryNotSupportedOnResource"
	QueryParameterOutOfRange       Key = "QueryParameterOutOfRange"
	QueryParameterValueFormatError Key = "QueryParameterValueFormatError"
	ResourceAtURIUnauthorized      Key = "ResourceAtUriUnauthorized"
	ResourceExhaustion             Key = "ResourceExhaustion"
	ResourceInStandby              Key = "ResourceInStandby"
	ResourceInUse                  Key = "ResourceInUse"
	ResourceMissingAtURI           Key = "ResourceMissingAtURI"
	ResourceNotFound               Key = "ResourceNotFound"
	CreateLimitReachedForResource  Key = "CreateLimitReachedForResource"
	ResourceAlreadyExists          Key = "ResourceAlreadyExists"
	PropertyValueFormatError       Key = "PropertyValueFormatError"
	PasswordChangeRequired         Key = "PasswordChangeRequired"
	ResourceCannotBeDeleted        Key = "ResourceCannotBeDeleted"
	ServiceTemporarilyUnavailable  Key = "ServiceTemporarilyUnavailable"
)

// Severity of a message.
type Severity string

// Severities.
const (
	Warning  Severity = "Warning"
	Critical Severity = "Critical"
)

// definition is a message as the registry defines it.
type definition struct {
	text       string
	severity   Severity
	args       int
	resolution string
}

// definitions is compared with the DMTF's file by a test.
var definitions = map[Key]definition{
	ActionNotSupported:             {"The action %1 is not supported by the resource.", Critical, 1, "Check the Actions property in the resource for the supported actions."},
	ActionParameterMissing:         {"The action %1 requires the parameter %2 to be present in the request body.", Critical, 2, "Supply the action with the required parameter in the request body when the request is resubmitted."},
	ActionParameterNotSupported:    {"The parameter %1 for the action %2 is not supported on the target resource.", Warning, 2, "Remove the parameter supplied and resubmit the request if the operation failed."},
	ActionParameterValueNotInList:  {"The value '%1' for the parameter %2 in the action %3 is not in the list of acceptable values.", Warning, 3, "Choose a value from the enumeration list that the implementation can support and resubmit the request if the operation failed."},
	ActionParameterValueTypeError:  {"The value '%1' for the parameter %2 in the action %3 is not a type that the parameter can accept.", Warning, 3, "Correct the value for the parameter in the request body and resubmit the request if the operation failed."},
	EmptyJSON:                      {"The request body submitted contained an empty JSON object and the service is unable to process it.", Warning, 0, "Add properties in the JSON object and resubmit the request."},
	GeneralError:                   {"A general error has occurred.  See Resolution for information on how to resolve the error, or @Message.ExtendedInfo if Resolution is not provided.", Critical, 0, "None."},
	HeaderInvalid:                  {"Header '%1' is invalid.", Critical, 1, "Resubmit the request with a valid request header."},
	InsufficientPrivilege:          {"There are insufficient privileges for the account or credentials associated with the current session to perform the requested operation.", Critical, 0, "Either abandon the operation or change the associated access rights and resubmit the request if the operation failed."},
	InternalError:                  {"The request failed due to an internal service error.  The service is still operational.", Critical, 0, "Resubmit the request.  If the problem persists, consider resetting the service."},
	MalformedJSON:                  {"The request body submitted was malformed JSON and could not be parsed by the receiving service.", Critical, 0, "Ensure that the request body is valid JSON and resubmit the request."},
	NoOperation:                    {"The request body submitted contain no data to act upon and no changes to the resource took place.", Warning, 0, "Add properties in the JSON object and resubmit the request."},
	NoValidSession:                 {"There is no valid session established with the implementation.", Critical, 0, "Establish a session before attempting any operations."},
	OperationFailed:                {"An error occurred internal to the service as part of the overall request.  Partial results may have been returned.", Warning, 0, "Resubmit the request.  If the problem persists, consider resetting the service or provider."},
	OperationNotAllowed:            {"The HTTP method is not allowed on this resource.", Critical, 0, "None."},
	PayloadTooLarge:                {"The supplied payload exceeds the maximum size supported by the service.", Critical, 0, "Check that the supplied payload is correct and supported by this service."},
	PreconditionFailed:             {"The ETag supplied did not match the ETag required to change this resource.", Critical, 0, "Try the operation again using the appropriate ETag."},
	PropertyMissing:                {"The property %1 is a required property and must be included in the request.", Warning, 1, "Ensure that the property is in the request body and has a valid value and resubmit the request if the operation failed."},
	PropertyNotWritable:            {"The property %1 is a read-only property and cannot be assigned a value.", Warning, 1, "Remove the property from the request body and resubmit the request if the operation failed."},
	PropertyUnknown:                {"The property %1 is not in the list of valid properties for the resource.", Warning, 1, "Remove the unknown property from the request body and resubmit the request if the operation failed."},
	PropertyValueConflict:          {"The property '%1' could not be written because its value would conflict with the value of the '%2' property.", Warning, 2, "None."},
	PropertyValueError:             {"The value provided for the property %1 is not valid.", Warning, 1, "Correct the value for the property in the request body and resubmit the request if the operation failed."},
	PropertyValueNotInList:         {"The value '%1' for the property %2 is not in the list of acceptable values.", Warning, 2, "Choose a value from the enumeration list that the implementation can support and resubmit the request if the operation failed."},
	PropertyValueTypeError:         {"The value '%1' for the property %2 is not a type that the property can accept.", Warning, 2, "Correct the value for the property in the request body and resubmit the request if the operation failed."},
	QueryCombinationInvalid:        {"Two or more query parameters in the request cannot be used together.", Warning, 0, "Remove one or more of the query parameters and resubmit the request if the operation failed."},
	QueryNotSupportedOnOperation:   {"Querying is not supported with the requested operation.", Warning, 0, "Remove the query parameters and resubmit the request if the operation failed."},
	QueryNotSupportedOnResource:    {"Querying is not supported on the requested resource.", Warning, 0, "Remove the query parameters and resubmit the request if the operation failed."},
	QueryParameterOutOfRange:       {"The value '%1' for the query parameter %2 is out of range %3.", Warning, 3, "Reduce the value for the query parameter to a value that is within range, such as a start or count value that is within bounds of the number of resources in a collection or a page number that is within the range of valid pages."},
	QueryParameterValueFormatError: {"The value '%1' for the parameter %2 is not a format that the parameter can accept.", Warning, 2, "Correct the value for the query parameter in the request and resubmit the request if the operation failed."},
	QueryNotSupported:              {"Querying is not supported by the implementation.", Warning, 0, "Remove the query parameters and resubmit the request if the operation failed."},
	ResourceAtURIUnauthorized:      {"While accessing the resource at '%1', the service received an authorization error '%2'.", Critical, 2, "Ensure that the appropriate access is provided for the service in order for it to access the URI."},
	ResourceExhaustion:             {"The resource '%1' was unable to satisfy the request due to unavailability of resources.", Critical, 1, "Ensure that the resources are available and resubmit the request."},
	ResourceInStandby:              {"The request could not be performed because the resource is in standby.", Critical, 0, "Ensure that the resource is in the correct power state and resubmit the request."},
	ResourceInUse:                  {"The change to the requested resource failed because the resource is in use or in transition.", Warning, 0, "Remove the condition and resubmit the request if the operation failed."},
	ResourceMissingAtURI:           {"The resource at the URI '%1' was not found.", Critical, 1, "Place a valid resource at the URI or correct the URI and resubmit the request."},
	ResourceNotFound:               {"The requested resource of type %1 named '%2' was not found.", Critical, 2, "Provide a valid resource identifier and resubmit the request."},
	CreateLimitReachedForResource:  {"The create operation failed because the resource has reached the limit of possible resources.", Critical, 0, "Either delete resources and resubmit the request if the operation failed or do not resubmit the request."},
	ResourceAlreadyExists:          {"The requested resource of type %1 with the property %2 with the value '%3' already exists.", Critical, 3, "Do not repeat the create operation as the resource was already created."},
	PropertyValueFormatError:       {"The value '%1' for the property %2 is not a format that the property can accept.", Warning, 2, "Correct the value for the property in the request body and resubmit the request if the operation failed."},
	PasswordChangeRequired:         {"The password provided for this account must be changed before access is granted.  PATCH the Password property for this account located at the target URI '%1' to complete this process.", Critical, 1, "Change the password for this account using a PATCH to the Password property at the URI provided."},
	ResourceCannotBeDeleted:        {"The delete request failed because the resource requested cannot be deleted.", Critical, 0, "Do not attempt to delete a non-deletable resource."},
	ServiceTemporarilyUnavailable:  {"The service is temporarily unavailable.  Retry in %1 seconds.", Critical, 1, "Wait for the indicated retry duration and retry the operation."},
}

// Message is an entry of @Message.ExtendedInfo.
type Message struct {
	ODataType         string   `json:"@odata.type"`
	MessageID         string   `json:"MessageId"`
	Message           string   `json:"Message"`
	MessageArgs       []string `json:"MessageArgs,omitempty"`
	MessageSeverity   Severity `json:"MessageSeverity"`
	Resolution        string   `json:"Resolution"`
	RelatedProperties []string `json:"RelatedProperties,omitempty"`
}

// New returns a message with its arguments. Missing arguments become empty and
// surplus ones are dropped.
func New(key Key, args ...string) Message {
	def, ok := definitions[key]
	if !ok {
		key, args = GeneralError, nil
		def = definitions[key]
	}
	filled := make([]string, def.args)
	copy(filled, args)
	var pairs []string
	for i, arg := range filled {
		pairs = append(pairs, "%"+string(rune('1'+i)), arg)
	}
	return Message{
		ODataType:       "#Message.v1_3_0.Message",
		MessageID:       idPrefix + string(key),
		Message:         strings.NewReplacer(pairs...).Replace(def.text),
		MessageArgs:     filled,
		MessageSeverity: def.severity,
		Resolution:      def.resolution,
	}
}

// About returns the message with the JSON pointers of the request's properties
// that it is about.
func (m Message) About(pointers ...string) Message {
	m.RelatedProperties = pointers
	return m
}

// Error is an error answer.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Messages are the extended information, the main one first.
	Messages []Message
	// Text is said in place of the main message's text where there is something
	// more exact to say.
	Text string
	// RetryAfter is the Retry-After header in seconds; 0: none.
	RetryAfter int
}

// Error returns what went wrong.
func (e *Error) Error() string {
	if e.Text != "" {
		return e.Text
	}
	if len(e.Messages) == 0 {
		return http.StatusText(e.Status)
	}
	return e.Messages[0].Message
}

// Errorf returns an error answer with one message.
func Errorf(status int, key Key, args ...string) *Error {
	return &Error{Status: status, Messages: []Message{New(key, args...)}}
}

// Body is the JSON body of an error answer (DSP0266, "Error responses").
type Body struct {
	Error BodyError `json:"error"`
}

// BodyError is the content of a Body.
type BodyError struct {
	Code         string    `json:"code"`
	Message      string    `json:"message"`
	ExtendedInfo []Message `json:"@Message.ExtendedInfo"`
}

// Body returns the answer's body.
func (e *Error) Body() Body {
	messages := e.Messages
	if len(messages) == 0 {
		messages = []Message{New(GeneralError)}
	}
	main := messages[0]
	if len(messages) > 1 {
		main = New(GeneralError)
	}
	text := main.Message
	if e.Text != "" {
		text = e.Text
	}
	return Body{BodyError{Code: main.MessageID, Message: text, ExtendedInfo: messages}}
}
