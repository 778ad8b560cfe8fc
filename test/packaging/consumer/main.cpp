// SPDX-License-Identifier: Apache-2.0
// What a C++ package does with the interfaces: fills a message and asks for the type support of messages and services.

#include <iostream>

#include "ros_kvstream/msg/kv_stats.hpp"
#include "ros_kvstream/srv/query.hpp"
#include "rosidl_typesupport_cpp/message_type_support.hpp"
#include "rosidl_typesupport_cpp/service_type_support.hpp"

int main()
{
  ros_kvstream::srv::Query::Response response;
  response.success = true;
  response.evidence.resize(2);
  response.memory.drop_causes = {"queue"};
  response.memory.drop_counts = {3};

  using rosidl_typesupport_cpp::get_message_type_support_handle;
  using rosidl_typesupport_cpp::get_service_type_support_handle;
  const bool message_known = get_message_type_support_handle<ros_kvstream::msg::KvStats>() != nullptr;
  const bool service_known = get_service_type_support_handle<ros_kvstream::srv::Query>() != nullptr;

  std::cout << response.evidence.size() << ' ' << response.memory.drop_counts.at(0) << ' ' <<
    message_known << ' ' << service_known << std::endl;
  return message_known && service_known ? 0 : 1;
}
